/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_CLI_COMMANDS_H
#define KVFERRY_CLI_COMMANDS_H

/* The entry of each subcommand. argv[0] is the subcommand's name. Returns the exit code: 0 success,
 * 1 failure at run time, 2 wrong usage. */
int kvfi_proxy_main(int argc, char **argv);
int kvfi_chat_main(int argc, char **argv);
int kvfi_trace_main(int argc, char **argv);
int kvfi_doctor_main(int argc, char **argv);

#endif
