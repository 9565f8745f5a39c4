/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_WIRE_AGENT_METADATA_KEYS_H
#define KVFI_WIRE_AGENT_METADATA_KEYS_H

/* The 21 keys of NixlAgentMetadata, in wire order; for the codec and its checks only. */

#define WHAT "NixlAgentMetadata"

#define KEY_ENGINE_ID         "engine_id"
#define KEY_AGENT_METADATA    "agent_metadata"
#define KEY_BASE_ADDR         "kv_caches_base_addr"
#define KEY_DEVICE_ID         "device_id"
#define KEY_NUM_BLOCKS        "num_blocks"
#define KEY_BLOCK_LENS        "block_lens"
#define KEY_BLOCK_STRIDES     "block_strides"
#define KEY_LAYOUT            "kv_cache_layout"
#define KEY_BLOCK_SIZE        "block_size"
#define KEY_SSM_SIZES         "ssm_sizes"
#define KEY_BACKEND           "attn_backend_name"
#define KEY_PHYSICAL          "physical_blocks_per_logical_kv_block"
#define KEY_REGION_NUM_BLOCKS "region_num_blocks"
#define KEY_REGION_GROUP_IDS  "region_group_ids"
#define KEY_REGION_NAMES      "region_names"
#define KEY_REGION_MEM_TYPES  "region_mem_types"
#define KEY_DCP_SIZE          "dcp_size"
#define KEY_PCP_SIZE          "pcp_size"
#define KEY_PLE_BLOCK_LEN     "ple_block_len"
#define KEY_REGION_MEMBERS    "region_members"
#define KEY_PACKED_LAYOUTS    "packed_member_layouts"

#endif
