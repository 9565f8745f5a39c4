#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seed corpus of every fuzz target: corpus/TARGET/NAME.

The golden messages are those of the unit tests; the hostile ones are what a decoder must refuse.
The output depends on nothing but this file. Usage: make_corpus.py [FOLDER]
"""
import pathlib
import struct
import sys

NIXL = b"nixlSerDes|"


def field(tag, data):
    return tag.encode() + struct.pack("<Q", len(data)) + data + b"|"


def u64(tag, value):
    return field(tag, struct.pack("<Q", value))


def region(addr, length, dev_id, meta=b"\0" * 9):
    return field("", struct.pack("<QQQ", addr, length, dev_id) + meta)


def section(regions, backend=b"UCX", mem_type=0, count=None):
    return (field("bknd", backend) + field("nixlDList", b"nixlSDList")
            + field("t", struct.pack("<I", mem_type))
            + u64("n", len(regions) if count is None else count) + b"".join(regions))


def blob(name=b"alpha", conns=((b"UCX", b"address"),), sections=(), conn_count=None,
         section_count=None):
    return (NIXL + field("Agent", name)
            + u64("Conns", len(conns) if conn_count is None else conn_count)
            + b"".join(field("t", t) + field("c", c) for t, c in conns)
            + field("", b"MemSection")
            + u64("nixlSecElms", len(sections) if section_count is None else section_count)
            + b"".join(sections))


def notif(name, msg):
    return NIXL + field("name", name) + field("msg", msg)


def pack(value):
    """msgpack, smallest forms; only the types our messages use."""
    if value is None:
        return b"\xc0"
    if value is True or value is False:
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        if value < 0:
            return struct.pack("b", value) if value >= -32 else b"\xd3" + struct.pack(">q", value)
        if value < 128:
            return bytes([value])
        for head, fmt, limit in ((0xCC, ">B", 1 << 8), (0xCD, ">H", 1 << 16),
                                 (0xCE, ">I", 1 << 32), (0xCF, ">Q", 1 << 64)):
            if value < limit:
                return bytes([head]) + struct.pack(fmt, value)
        raise ValueError(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        if len(data) < 32:
            return bytes([0xA0 | len(data)]) + data
        return b"\xd9" + struct.pack(">B", len(data)) + data
    if isinstance(value, bytes):
        if len(value) < 256:
            return b"\xc4" + struct.pack(">B", len(value)) + value
        return b"\xc5" + struct.pack(">H", len(value)) + value
    if isinstance(value, (list, tuple)):
        head = bytes([0x90 | len(value)]) if len(value) < 16 else b"\xdc" + struct.pack(
            ">H", len(value))
        return head + b"".join(map(pack, value))
    if isinstance(value, dict):
        head = bytes([0x80 | len(value)]) if len(value) < 16 else b"\xde" + struct.pack(
            ">H", len(value))
        return head + b"".join(pack(k) + pack(v) for k, v in value.items())
    raise TypeError(type(value))


METADATA = {
    "engine_id": "pre", "agent_metadata": b"\0\1\2\3",
    "kv_caches_base_addr": [0x7F0000000000, 0x7F0000100000], "device_id": 0, "num_blocks": 64,
    "block_lens": [3072, 3072], "block_strides": [3072, 4096], "kv_cache_layout": "LBHNC",
    "block_size": 16, "ssm_sizes": [0, 0], "attn_backend_name": "CPU_ATTN",
    "physical_blocks_per_logical_kv_block": 1, "region_num_blocks": [64, 64],
    "region_group_ids": [0, 0],
    "region_names": ["model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn"],
    "region_mem_types": ["DRAM", "DRAM"], "dcp_size": 1, "pcp_size": 1, "ple_block_len": None,
    "region_members": [], "packed_member_layouts": {},
}

PACKED = {
    **METADATA, "engine_id": "dec_dp1", "agent_metadata": b"\xaa\xbb",
    "kv_caches_base_addr": [9437184], "device_id": 3, "num_blocks": 5, "block_lens": [384],
    "block_strides": [384], "kv_cache_layout": "BLHNC", "block_size": 64,
    "attn_backend_name": "FLASHMLA_SPARSE", "region_num_blocks": [5], "region_group_ids": [-1],
    "region_names": ["L0"], "region_mem_types": ["VRAM"], "region_members": [["L0", "L1"]],
    "packed_member_layouts": {"L0": [0, 64], "L1": [64, 320]},
}

PUSH_REG = {
    "request_id": "cmpl-u-0-0a1b2c3d", "decode_engine_id": "dec", "decode_host": "10.0.0.2",
    "decode_port": 5600, "decode_tp_size": 2, "local_block_ids": [[7, 8, 300]],
    "remote_engine_id": "pre", "remote_host": "10.0.0.1", "remote_port": 5600,
    "remote_tp_size": 1, "remote_pp_size": 1,
}

HASH = "a0afe7f6adacd47e07863d84fa9325df1e91df9c2ca7ca6778b0721ba6470f1b"
PAYLOAD = {"compatibility_hash": HASH, "agent_metadata_bytes": pack(METADATA)}

HOSTILE = {
    "empty": b"",
    "deep_arrays": b"\x91" * 10000,
    "deep_maps": b"\x81\xa1a" * 3000,
    "huge_array": b"\xdd\xff\xff\xff\xff\x00",
    "huge_map": b"\xdf\x7f\xff\xff\xff\x00",
    "huge_str": b"\xdb\xff\xff\xff\xff\x00",
    "huge_bin": b"\xc6\xff\xff\xff\xff\x00",
    "extension": b"\xc7\x01\x00\x00",
    "unassigned": b"\xc1",
    "array_for_map": pack(list(range(21))),
}


def without(message, key):
    return {k: v for k, v in message.items() if k != key}


def push_reg(message):
    return b"PUSH_REG:" + pack(message)


GOLDEN_REGION = region(0x7F3E741F7000, 1 << 20, 0)
GOLDEN_ADDRESS = bytes.fromhex("7102e9f8c2cfcfe4e9e400860002c0000202cf190c015a0080008b0082e0ab")

TARGETS = {
    "nixl_notif": {
        "golden": notif(b"beta", b"hi"),
        "no_message": notif(b"beta", b""),
        "push_reg": notif(b"dec", push_reg(PUSH_REG)),
        "no_name": notif(b"", b"hi"),
        "trailing": notif(b"beta", b"hi") + b"x",
        "length_wraps": NIXL + b"name" + b"\xff" * 8 + b"beta|",
        "truncated": notif(b"beta", b"hi")[:-1],
    },
    "nixl_metadata": {
        "golden": blob(conns=[(b"UCX", GOLDEN_ADDRESS)], sections=[section([GOLDEN_REGION])]),
        "connection_only": blob(),
        "partial": blob(conns=[], sections=[section([GOLDEN_REGION])]),
        "unsorted": blob(sections=[section([region(9, 1, 1), region(9, 1, 0), region(5, 1, 0)]),
                                   section([region(5, 1, 0, b"k")], mem_type=1)]),
        "repeated": blob(sections=[section([region(9, 1, 1), region(9, 1, 1)])]),
        "repeated_other_key": blob(sections=[section([region(9, 1, 1),
                                                      region(9, 1, 1, b"other")])]),
        "section_twice": blob(sections=[section([GOLDEN_REGION]), section([GOLDEN_REGION])]),
        "section_empty": blob(sections=[section([])]),
        "huge_regions": blob(sections=[section([GOLDEN_REGION], count=1 << 60)]),
        "many_regions": blob(sections=[section([GOLDEN_REGION], count=(1 << 20) - 1)]),
        "huge_sections": blob(section_count=(1 << 64) - 1),
        "huge_conns": blob(conn_count=(1 << 64) - 1),
        "region_wraps": blob(sections=[section([region((1 << 64) - 1, 1 << 20, 0)])]),
        "unbounded_file": blob(sections=[section([region(7, (1 << 64) - 1, 3, b"")],
                                                 backend=b"POSIX", mem_type=4)]),
    },
    "agent_metadata": {
        **HOSTILE,
        "golden": pack(METADATA),
        "packed_rows": pack(PACKED),
        "required_only": pack(dict(list(METADATA.items())[:12])),
        "nils": pack({**METADATA, "region_names": None, "region_mem_types": None,
                      "region_group_ids": None, "region_num_blocks": None}),
        "short_conv": pack({**METADATA, "ple_block_len": 512}),
        "unknown_key": pack({**METADATA, "later": {"a": [1, None, 2.5]}}),
        "no_strides": pack(without(METADATA, "block_strides")),
        "extent_wraps": pack({**METADATA, "kv_caches_base_addr": [(1 << 64) - 1, 0]}),
        "negative": pack({**METADATA, "num_blocks": -1}),
        "long_tuple": pack({**METADATA, "ssm_sizes": [1, 2, 3]}),
        "trailing": pack(METADATA) + b"\0",
        "truncated": pack(METADATA)[:-1],
    },
    "handshake_payload": {
        **HOSTILE,
        "golden": pack(PAYLOAD),
        "caps": pack({**PAYLOAD, "kvferry_caps": ["push_fail", "push_drop", "later"]}),
        "bad_hash": pack({**PAYLOAD, "compatibility_hash": HASH.upper()}),
        "no_metadata": pack(without(PAYLOAD, "agent_metadata_bytes")),
        "caps_wrong": pack({**PAYLOAD, "kvferry_caps": {"push_fail": True}}),
    },
    "handshake_request": {
        **HOSTILE,
        "golden": pack([b"get_meta_msg", 0, 0]),
        "rank_1_3": pack([b"get_meta_msg", 1, 3]),
        "legacy": pack([b"get_meta_msg", 3]),
        "other_word": pack([b"get_meta_msx", 0, 0]),
        "text_word": pack(["get_meta_msg", 0, 0]),
        "big_rank": pack([b"get_meta_msg", 0, 1 << 40]),
        "four": pack([b"get_meta_msg", 0, 0, 0]),
    },
    "handshake_timestamp": {
        "golden": pack(1234.5),
        "int": pack(1 << 63),
        "negative": pack(-5),
        "float32": b"\xca\x44\x9a\x50\x00",
        "nan": b"\xcb\x7f\xf8" + b"\0" * 6,
        "nil": pack(None),
        "truncated": b"\xcb\x40",
    },
    "push_reg": {
        **{name: b"PUSH_REG:" + data for name, data in HOSTILE.items()},
        "golden": push_reg(PUSH_REG),
        "transfer_id": push_reg({**PUSH_REG, "transfer_id": "t-1"}),
        "flat": push_reg({**PUSH_REG, "local_block_ids": [7, 8, 300]}),
        "groups": push_reg({**PUSH_REG, "local_block_ids": [[1], [], [2, 3]]}),
        "six_keys": push_reg(dict(list(PUSH_REG.items())[:6])),
        "no_request_id": push_reg(without(PUSH_REG, "request_id")),
        "bytes_request_id": push_reg({**PUSH_REG, "request_id": b"x"}),
        "mixed_blocks": push_reg({**PUSH_REG, "local_block_ids": [1, [2]]}),
        "negative_block": push_reg({**PUSH_REG, "local_block_ids": [[-1]]}),
        "no_prefix": pack(PUSH_REG),
    },
    "notif": {
        "done": b"cmpl-u-0-0a1b2c3d:2",
        "colons": b"a:b:c:16",
        "heartbeat": b"HB:idA,idB",
        "heartbeat_holes": b"HB:,idA,,idB,",
        "push_reg": push_reg(PUSH_REG),
        "push_fail": b"PUSH_FAIL:cmpl-u-0-0a1b2c3d:2",
        "push_drop": b"PUSH_DROP:cmpl-u-0-0a1b2c3d",
        "fail_of_fail": b"PUSH_FAIL:PUSH_FAIL:a:1",
        "no_colon": b"cmpl-u-0",
        "bad_number": b"a:1e3",
        "huge_number": b"a:99999999999999999999",
        "not_utf8": b"\xff\xfe:1",
        "nul": b"a\0b:1",
    },
    "compat_hash": {
        "model": b"HuggingFaceTB/SmolLM2-135M-Instruct",
        "escapes": b"\"\\\b\f\n\r\t\x01\x1f\x7f/",
        "unicode": "caf\u00e9 \u20ac \U0001f600".encode(),
        "surrogate": b"\xed\xa0\x80",
        "overlong": b"\xc0\xaf",
    },
}


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(
        __file__).resolve().parent / "corpus"
    for target, files in TARGETS.items():
        folder = root / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
