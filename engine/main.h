/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MAIN_H
#define ENGINE_MAIN_H

/* `kvferry engine`: argv[0] is the subcommand's name. Returns the exit code: 0 after SIGTERM,
 * SIGINT or --help, 1 when it could not start, 2 for wrong options. */
int kvf_engine_main(int argc, char **argv);

#endif
