// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Offsets, packets and constants of shm's format, taken from docs/shm-format.md and not from the library's source.

pub const VERSION: u32 = 6;
pub const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"gdrfabS5");
pub const TABLE_MAGIC: u64 = u64::from_le_bytes(*b"gdrfabT4");
pub const TABLE_BYTES: usize = 39_321_664;
pub const AREA: usize = 2 << 20;

/// Offsets in a segment.
pub const LINES: usize = 8;
pub const RETURNED: usize = 64;
pub const MATCHED: usize = 72;
pub const AREA_RETURNED: usize = 80;
pub const BUSY: usize = 128;
pub const SLEEPING: usize = 192;
pub const FILTER: usize = 256;
pub const FLIGHTS: usize = 768;
pub const RING: usize = 9472;
pub const SLOTS: usize = 128;

pub fn slot(index: usize) -> usize {
    1280 + 64 * (index % SLOTS)
}

pub fn area(lines: usize) -> usize {
    (RING + 64 * lines).next_multiple_of(4096)
}

pub fn segment_bytes(lines: usize) -> usize {
    area(lines) + AREA
}

/// Offsets in a table.
pub const REACH: usize = 8;
pub const ENTRIES: usize = 524_288;

pub fn file(slot: usize) -> usize {
    64 + 128 * (slot % 4096)
}

pub fn extent(index: usize) -> usize {
    524_352 + 32 * (index % 32_768)
}

pub fn entry(index: usize) -> usize {
    1_572_928 + 64 * (index % ENTRIES)
}

pub const EVENT: u64 = 1 << 32;
pub const MULTI: u64 = 1 << 33;

/// Kinds of messages in the ring.
pub const SEND: u8 = 1;
pub const RENDEZVOUS: u8 = 2;
pub const FRAGMENT: u8 = 3;
pub const NOTIFY: u8 = 4;
pub const COOP: u8 = 5;
pub const STAGED_WRITE: u8 = 6;
pub const STAGED_READ: u8 = 7;
pub const STAGED_DATA: u8 = 8;
pub const ATOMIC: u8 = 10;
pub const COOP_LIST: u8 = 11;

/// Flags of messages.
pub const DATA: u8 = 1;
pub const ACK: u8 = 2;
pub const LAST: u8 = 4;
pub const OUT_OF_LINE: u8 = 128;

/// Kinds of packets.
pub const HELLO: u32 = 1;
pub const ACCEPT: u32 = 2;
pub const REJECT: u32 = 3;
pub const WAKE: u32 = 4;
pub const FILE_ASK: u32 = 5;
pub const FILE_BRING: u32 = 6;
pub const BYE: u32 = 7;
pub const READY: u32 = 8;
pub const REFUSE: u32 = 9;

/// A packet of `kind`, to which numbers of four and eight bytes are appended.
pub fn packet(kind: u32) -> Vec<u8> {
    let mut out = 0x6764_7266u32.to_le_bytes().to_vec();
    out.extend(kind.to_le_bytes());
    out
}

pub struct Intro<'a> {
    pub version: u32,
    pub host: u32,
    pub lines: u32,
    pub fences: u32,
    pub guard: (u64, u64),
    pub by_name: u32,
    pub name: &'a [u8],
    pub data: &'a [u8],
}

pub fn intro(kind: u32, i: &Intro<'_>) -> Vec<u8> {
    let mut out = packet(kind);
    [i.version, i.host, i.lines, i.fences].iter().for_each(|n| out.extend(n.to_le_bytes()));
    [i.guard.0, i.guard.1].iter().for_each(|n| out.extend(n.to_le_bytes()));
    out.extend(i.by_name.to_le_bytes());
    for bytes in [i.name, i.data] {
        out.extend((bytes.len() as u32).to_le_bytes());
        out.extend(bytes);
    }
    out
}

/// A provider's key with these random bits, for the entry `index`.
pub fn provider_key(random: u64, index: u64) -> u64 {
    1 << 63 | random << 19 | index
}

/// Home slot of a key that the region's owner chose.
pub fn key_place(key: u64) -> usize {
    let x = (key ^ key >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    35_127_360 + 8 * ((x ^ x >> 33) % 524_288) as usize
}
