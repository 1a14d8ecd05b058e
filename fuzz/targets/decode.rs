// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fuzzes all functions that decode bytes of an unknown sender: heads of frames, handshake messages, addresses, key files. Bytes that
//! decode must encode to the same bytes again, and must keep the bounds that their readers rely on.
#![no_main]

use gdrfab::prov::Parcel;
use gdrfab::prov::name::Name;
use gdrfab::prov::tcp::Address;
use gdrfab::prov::tcp::secure::known::KnownHosts;
use gdrfab::prov::tcp::wire::frame;
use gdrfab::prov::tcp::wire::frame::{
    BODY_MAX, HEAD_MAX, HEADER, Header, LIST, PART, PARTS, STRIPED, STRIPED_MIN, WHOLE_MAX, WirePosition, wire_len, wire_position,
};
use gdrfab::prov::tcp::wire::hello;
use gdrfab::prov::tcp::wire::hello::{HEAD_LEN, HELLO_LEN, Head, Hello, Terms};
use gdrfab::prov::tcp::wire::segment::{RAILS_MAX, SEGMENT, SEGMENT_HEAD, SegmentHead, SegmentKind};
use gdrfab::rdm::wire::hello::{Intro, Refusal};
use gdrfab::rdm::wire::parcel::{self, ParcelWords};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((which, rest)) = data.split_first() else { return };
    match which % 9 {
        0 => header(rest),
        1 => greeting(rest),
        2 => head(rest),
        3 => terms(rest),
        5 => introduction(rest),
        6 => parcel(rest),
        7 => name(rest),
        8 => segment(rest),
        _ => {
            address(rest);
            keys(rest);
        }
    }
});

fn segment(data: &[u8]) {
    let Some((bytes, _)) = data.split_first_chunk::<SEGMENT_HEAD>() else { return };
    let Ok(head) = SegmentHead::decode(bytes) else { return };
    assert_eq!(head.encode(), *bytes);
    match head.word {
        SegmentKind::Data { from, len } => assert!(len <= SEGMENT && from.checked_add(len as u64).is_some()),
        SegmentKind::Down { rail, .. } => assert!(rail < RAILS_MAX),
    }
}

fn header(data: &[u8]) {
    let Some((bytes, rest)) = data.split_first_chunk::<HEADER>() else { return };
    let Ok(h) = Header::decode(bytes) else { return };
    assert_eq!(h.encode(), *bytes);
    assert!(HEADER + 8 * h.words() <= HEAD_MAX && h.len <= BODY_MAX);
    for i in 0..h.words() {
        let known = rest.get(8 * i..8 * i + 8).map_or(0, |b| b.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
        assert_eq!(frame::word(rest, i), known);
    }
    if let Err(e) = frame::error_of(frame::word(rest, 0)) {
        assert!(e.errno != 0 && frame::status_of(e.code) != 0);
    }
    if let Err(e) = frame::error_of_list(frame::word(rest, 0)) {
        // Other fields may be cut to their bounds; the piece must survive.
        assert_eq!(frame::error_of_list(frame::list_status(&e)).expect_err("an error").piece, e.piece);
    }
    assert!(!h.has(LIST) || (h.pieces == 0 && h.len > 0));
    if !h.kind.has_body() {
        return;
    }
    let in_parts = h.has(PARTS);
    if h.has(STRIPED) {
        // The body comes on other streams, which the target `connection` feeds.
        return assert!(!in_parts && h.len >= STRIPED_MIN);
    }
    assert!(in_parts || h.len <= WHOLE_MAX);
    walk(h.len, in_parts, frame::word(rest, 1));
}

/// A body is a sequence of runs without gaps, from whichever byte the walk starts.
fn walk(len: u64, in_parts: bool, from: u64) {
    let end = wire_len(len, in_parts);
    assert!(end >= len && wire_position(end, len, in_parts) == WirePosition::End);
    let mut at = from % (end + 2);
    for _ in 0..8 {
        match wire_position(at, len, in_parts) {
            WirePosition::End => return assert!(at >= end),
            WirePosition::Word(k) => {
                assert!(in_parts && k < 8 && at + 8 - u64::from(k) <= end);
                at += 8 - u64::from(k);
            }
            WirePosition::Byte(byte, run) => {
                assert!(run > 0 && byte + run <= len && at + run <= end && (!in_parts || run <= PART));
                at += run;
            }
        }
    }
}

fn greeting(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<HELLO_LEN>() else { return };
    let Ok(hello) = Hello::decode(bytes) else { return };
    assert!(hello.lowest <= hello.highest);
    if hello.speaks_ours() {
        assert!(hello.id.is_none() || hello.keyed && hello.highest >= hello::STATIC_SINCE);
        assert_eq!(hello.encode(), *bytes);
    }
}

fn head(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<HEAD_LEN>() else { return };
    let Ok(head) = Head::decode(bytes) else { return };
    assert!(head.body <= hello::BODY_MAX);
    assert_eq!(head.encode(), *bytes);
    assert_eq!(head.words(), bytes[..hello::HEAD_WORDS]);
}

fn terms(data: &[u8]) {
    let Ok(terms) = Terms::decode(data) else { return };
    assert!(terms.address.len() <= hello::ADDRESS_MAX && terms.data.len() <= hello::DATA_MAX);
    assert_eq!(terms.encode().expect("what was taken can be said"), data);
}

fn address(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(address) = text.parse::<Address>() else { return };
    assert_eq!(address.to_string().parse::<Address>().expect("what it prints it reads"), address);
}

/// A file with keys of hosts.
fn keys(data: &[u8]) {
    let Ok(known) = KnownHosts::parse(data) else { return };
    assert!(KnownHosts::has(data) && known.peers() > 0 && known.public().len() == 64);
    // The file may have its own host's key, and then `for_peer` gives that key alone.
    assert!(known.for_peer(&known.id()).is_none_or(|one| one.peers() == 1 && one.pair(&known.id()).is_some()));
}

/// The introduction that a connectionless endpoint sends when it connects to another.
fn introduction(data: &[u8]) {
    if let Ok(intro) = Intro::decode(data) {
        assert!(intro.name.nonce != 0 && intro.encode() == data);
    }
    if let Some(refusal) = Refusal::decode(data) {
        assert_eq!(refusal.encode(), data);
    }
}

fn name(data: &[u8]) {
    if let Ok(name) = Name::decode(data) {
        assert_eq!(name.encode(), data);
        assert_eq!(name.to_string().parse::<Name>().expect("what it prints it reads"), name);
    }
    if let Some(name) = std::str::from_utf8(data).ok().and_then(|text| text.parse::<Name>().ok()) {
        assert_eq!(Name::decode(&name.encode()).expect("what it says it reads"), name);
    }
}

struct Brought<'a>(Vec<u64>, &'a [u8]);

impl Parcel for Brought<'_> {
    fn words(&self) -> usize {
        self.0.len()
    }

    fn word(&self, i: usize) -> u64 {
        self.0.get(i).copied().unwrap_or(0)
    }

    fn len(&self) -> usize {
        self.1.len()
    }

    fn copy(&self, _skip: usize, _to: gdrfab::mr::Iov) {}
}

/// The packets that connectionless endpoints exchange once they are connected.
fn parcel(data: &[u8]) {
    let Some((count, rest)) = data.split_first() else { return };
    let (words, bytes) = rest.split_at(rest.len().min(8 * usize::from(count % 33)));
    let words: Vec<u64> = words.chunks_exact(8).map(|b| b.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))).collect();
    let brought = Brought(words, bytes);
    let same = |words: ParcelWords| assert_eq!(words.as_slice(), brought.0);
    match parcel::ParcelHead::of(&brought) {
        Err(_) => {}
        Ok(parcel::ParcelHead::Eager(label)) => {
            let (words, count) = parcel::eager(&label);
            assert_eq!(words[..count], brought.0);
        }
        Ok(parcel::ParcelHead::Offer(label, offer)) => same(ParcelWords::offer(&label, offer.number, offer.len, &offer.pieces)),
        Ok(parcel::ParcelHead::Credit(consumed, grant)) => same(ParcelWords::credit(consumed, grant)),
        Ok(parcel::ParcelHead::Done(number, status)) => assert!(brought.0[1] == number && brought.0[2] as u16 as i32 == status.0),
        Ok(parcel::ParcelHead::Withdraw(number)) => same(ParcelWords::withdraw(number)),
    }
}
