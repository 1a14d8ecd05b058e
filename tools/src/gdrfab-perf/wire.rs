// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The messages between the two sides: the plan and the answer in the connection's private data, then control messages, which
//! carry remote data and so differ from the messages under test.

use crate::drive::{MAX_ENDPOINTS, MAX_INLINE};
use crate::memory::{Kind, Mismatch};
use crate::report::Rate;
use crate::tests::Test;
use gdrfab::error::{Code, Error, errno};
use gdrfab::mr::Paths;

/// The first word of the request for one more endpoint of a connection.
const JOIN: u64 = u64::from_le_bytes(*b"gdrfabj\x05");

/// "gdrfabp" and the version of the format that follows.
const MAGIC: u64 = u64::from_le_bytes(*b"gdrfabp\x05");

fn pack(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// The words of a packet that has at least `N` words.
fn unpack<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let mut words = bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap_or_default()));
    let mut out = [0; N];
    for w in &mut out {
        *w = words.next()?;
    }
    Some(out)
}

/// The address and the key of the peer's memory under test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerMemory {
    pub base: u64,
    pub key: u64,
}

/// The plan: the parameters that both sides have to agree on.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub test: Test,
    pub max_size: usize,
    pub depth: usize,
    pub memory: Kind,
    pub path: Paths,
    /// 0: the default.
    pub deadline_ms: u64,
    pub coop: bool,
    pub verify: bool,
    pub one_thread: bool,
    pub auto: bool,
    pub sleep: bool,
    /// Both sides run on one CPU, so a side that waits yields it.
    pub yields: bool,
    /// The latency of writes is measured by one write at a time, because one side's memory cannot be polled.
    pub one_way: bool,
    /// Both sides run the window.
    pub both: bool,
    pub endpoints: usize,
    /// The number of operations of one post.
    pub list: usize,
    /// The bytes that travel with a request; `None`: the provider's own.
    pub inline: Option<usize>,
    /// Endpoints are connectionless; all their messages have tags.
    pub rdm: bool,
    pub tagged: bool,
}

/// The milliseconds that the peer may be silent, unless the command line says otherwise.
pub const PATIENCE_MS: u64 = 10_000;

/// The widths in bits of the numbers that share a word.
const TEST_BITS: u32 = 6;
const DEPTH_BITS: u32 = 11;
const ENDPOINT_BITS: u32 = 7;
const SIZE_BITS: u32 = 41;

fn bits(word: u64, at: u32, n: u32) -> usize {
    (word >> at & ((1 << n) - 1)) as usize
}

impl Plan {
    /// Milliseconds that the peer may be silent.
    pub fn patience_ms(&self) -> u64 {
        if self.deadline_ms == 0 { PATIENCE_MS } else { self.deadline_ms }
    }

    pub fn encode(&self, place: PeerMemory) -> Vec<u8> {
        let on = [self.coop, self.verify, self.one_thread, self.auto, self.sleep, self.yields, self.one_way, self.both];
        let flags = on.iter().enumerate().fold(0, |f, (i, on)| f | u64::from(*on) << i);
        let inline = self.inline.map_or(0, |n| n as u64 + 1);
        let counts = self.depth as u64 | (self.endpoints as u64) << DEPTH_BITS | inline << (DEPTH_BITS + ENDPOINT_BITS);
        let test = self.test.code() | u64::from(self.rdm) << TEST_BITS | u64::from(self.tagged) << (TEST_BITS + 1);
        let small = test | flags << 8 | self.path.bits() << 16 | counts << 32;
        let memory = u64::from(self.memory.code()) | self.deadline_ms.min(u64::from(u32::MAX)) << 32;
        let sizes = self.max_size as u64 | (self.list as u64) << SIZE_BITS;
        pack(&[MAGIC, small, memory, sizes, place.base, place.key])
    }

    /// The words for a client whose plan cannot be read.
    pub fn decode(bytes: &[u8]) -> Result<(Plan, PeerMemory), &'static str> {
        let [magic, small, memory, sizes, base, key] = unpack::<6>(bytes).ok_or("this is gdrfab-perf; who are you?")?;
        if magic != MAGIC {
            return Err("a different version of gdrfab-perf");
        }
        let on = |i: u32| small >> (8 + i) & 1 == 1;
        let wrong = "an unknown plan";
        let counts = small >> 32;
        let depth = Some(bits(counts, 0, DEPTH_BITS)).filter(|n| (1..=1024).contains(n)).ok_or(wrong)?;
        let inline = (counts >> (DEPTH_BITS + ENDPOINT_BITS)) as usize;
        let plan = Plan {
            test: Test::from_code(bits(small, 0, TEST_BITS) as u64).ok_or(wrong)?,
            max_size: Some(bits(sizes, 0, SIZE_BITS)).filter(|n| (1..=1 << 40).contains(n)).ok_or(wrong)?,
            depth,
            memory: Kind::from_code(memory as u32).ok_or(wrong)?,
            path: Paths::from_bits(small >> 16 & 0xffff).ok_or(wrong)?,
            deadline_ms: memory >> 32,
            coop: on(0),
            verify: on(1),
            one_thread: on(2),
            auto: on(3),
            sleep: on(4),
            yields: on(5),
            one_way: on(6),
            both: on(7),
            endpoints: Some(bits(counts, DEPTH_BITS, ENDPOINT_BITS)).filter(|n| (1..=MAX_ENDPOINTS).contains(n)).ok_or(wrong)?,
            list: usize::try_from(sizes >> SIZE_BITS).ok().filter(|n| (1..=depth).contains(n)).ok_or(wrong)?,
            inline: match inline {
                0 => None,
                n if n <= MAX_INLINE + 1 => Some(n - 1),
                _ => return Err(wrong),
            },
            rdm: bits(small, TEST_BITS, 1) == 1,
            tagged: bits(small, TEST_BITS + 1, 1) == 1,
        };
        if plan.rdm && !plan.test.is_for_rdm() || plan.tagged && !(plan.rdm && plan.test.is_message()) {
            return Err(wrong);
        }
        if (plan.both || plan.endpoints > 1 || plan.list > 1) && !plan.test.is_window()
            || plan.both && (plan.test.is_list() || plan.test.action().is_some())
        {
            return Err(wrong);
        }
        Ok((plan, PeerMemory { base, key }))
    }
}

/// The server's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Answer {
    pub place: PeerMemory,
    /// The nanoseconds that the registration of its memory took.
    pub registration_ns: u64,
    /// The number by which further endpoints of the same client identify the client.
    pub token: u64,
}

impl Answer {
    pub fn encode(&self) -> Vec<u8> {
        pack(&[MAGIC, self.place.base, self.place.key, self.registration_ns, self.token])
    }

    pub fn decode(bytes: &[u8]) -> Option<Answer> {
        let [magic, base, key, registration_ns, token] = unpack::<5>(bytes)?;
        (magic == MAGIC).then_some(Answer { place: PeerMemory { base, key }, registration_ns, token })
    }
}

/// The request of one more endpoint: its number, from 1.
pub fn encode_join(token: u64, lane: usize) -> Vec<u8> {
    pack(&[JOIN, token, lane as u64])
}

pub fn decode_join(bytes: &[u8]) -> Option<(u64, u64)> {
    let [magic, token, lane] = unpack::<3>(bytes)?;
    (magic == JOIN).then_some((token, lane))
}

/// The kinds of control messages; the number is sent as remote data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kinds {
    /// Client: prepare a size (the size, and whether every arrival is checked; for a window in both directions also the
    /// operations for one completion, the nanoseconds between bursts, and the operations of a burst).
    Begin = 1,
    /// Server: ready (the path from the server to the client's region, 0 = none).
    Ready = 2,
    /// Client: the last operation was posted (the number of messages that it sent).
    Stop = 3,
    /// Server: the result (see [`Stopped`]).
    Stopped = 4,
    /// Client: check the bytes that arrived.
    Check = 5,
    /// Server: the result of that check (a mismatch).
    Verdict = 6,
    /// Client: all done.
    Bye = 7,
    /// Either: it is over; the reason (text).
    Fail = 8,
    /// Client: still here.
    Tick = 9,
    /// Client: run your window until the next message; server: it begins.
    Go = 10,
}

impl Kinds {
    pub fn from_data(data: u64) -> Option<Kinds> {
        use Kinds::*;
        [Begin, Ready, Stop, Stopped, Check, Verdict, Bye, Fail, Tick, Go].into_iter().find(|k| *k as u64 == data)
    }
}

/// The most bytes of a control message.
pub const MAIL_MAX: usize = 240;

/// The first bytes of a control message that cannot carry its kind as remote data; no pattern begins like this.
pub const ENVELOPE: usize = 16;

pub fn envelope(kind: Kinds) -> Vec<u8> {
    pack(&[MAGIC, kind as u64])
}

pub fn open_envelope(bytes: &[u8]) -> Option<u64> {
    let [magic, kind] = unpack::<2>(bytes)?;
    (magic == MAGIC).then_some(kind)
}

/// A control message that has arrived.
#[derive(Clone, Debug)]
pub struct Mail {
    pub kind: Kinds,
    pub bytes: Vec<u8>,
}

impl Mail {
    /// The first words of its bytes; missing words are 0.
    pub fn words<const N: usize>(&self) -> [u64; N] {
        let mut padded = self.bytes.clone();
        padded.resize(padded.len().max(N * 8), 0);
        unpack(&padded).unwrap_or([0; N])
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

pub fn silent(what: &str) -> Error {
    Error::coded(errno::ETIMEDOUT, Code::Deadline, format!("the peer is silent: no {what} before the deadline"))
}

pub fn peer_failed(mail: &Mail) -> Error {
    Error::new(errno::ECONNABORTED, format!("the peer gave up: {}", mail.text()))
}

/// The seed of the pattern of a round. The two sides never send the same bytes.
pub fn seed(size: usize, round: u64, by_server: bool) -> u64 {
    (size as u64) << 20 ^ round << 1 ^ u64::from(by_server) ^ 0x5EED << 48
}

/// The server's message at the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stopped {
    /// The number of messages that arrived.
    pub arrived: u64,
    pub mismatch: Option<Mismatch>,
    /// The CPU time that it used, in percent of one CPU.
    pub cpu_percent: f64,
    /// The number of messages that it sent, if it runs the window too, and the result of that window.
    pub sent: u64,
    pub rate: Rate,
}

impl Stopped {
    pub fn encode(&self) -> Vec<u8> {
        let rate = [self.rate.peak, self.rate.avg, self.rate.median, self.rate.p99, self.rate.mops].map(f64::to_bits);
        let head = [self.arrived, self.cpu_percent.to_bits(), self.sent];
        pack(&[&head[..], &pack_mismatch(self.mismatch), &rate].concat())
    }

    /// Reads the message; a value that is missing or makes no sense is 0.
    pub fn decode(mail: &Mail) -> Stopped {
        let words: [u64; 12] = mail.words();
        let number = |i: usize| Some(f64::from_bits(words[i])).filter(|x| x.is_finite() && *x >= 0.0).unwrap_or(0.0);
        Stopped {
            arrived: words[0],
            cpu_percent: number(1),
            sent: words[2],
            mismatch: unpack_mismatch(&words[3..7]),
            rate: Rate { peak: number(7), avg: number(8), median: number(9), p99: number(10), mops: number(11) },
        }
    }
}

/// Converts a mismatch, or none, into words of a control message and back.
pub fn pack_mismatch(m: Option<Mismatch>) -> [u64; 4] {
    m.map_or([0; 4], |m| [1, m.offset as u64, u64::from(m.expected), u64::from(m.found)])
}

pub fn unpack_mismatch(words: &[u64]) -> Option<Mismatch> {
    match *words {
        [1, offset, expected, found, ..] => Some(Mismatch { offset: offset as usize, expected: expected as u8, found: found as u8 }),
        _ => None,
    }
}

pub fn words(list: &[u64]) -> Vec<u8> {
    pack(list)
}

/// The beginning of a text that fits into a packet of `max` bytes.
pub fn clip(text: &str, max: usize) -> &[u8] {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn plans_travel_and_nonsense_is_refused() {
        let plan = Plan {
            test: Test::SendBw,
            max_size: 1 << 26,
            depth: 17,
            memory: Kind::Memfd,
            path: Paths::CMA,
            deadline_ms: 5,
            coop: false,
            verify: true,
            one_thread: false,
            auto: true,
            sleep: false,
            yields: true,
            one_way: true,
            both: true,
            endpoints: 64,
            list: 17,
            inline: Some(MAX_INLINE),
            rdm: true,
            tagged: true,
        };
        let place = PeerMemory { base: 77, key: u64::MAX };
        let bytes = plan.encode(place);
        assert_eq!(Plan::decode(&bytes), Ok((plan.clone(), place)));
        assert!(bytes.len() <= 48, "what rdma_cm leaves of a request over InfiniBand");
        assert!(Plan::decode(&bytes[..40]).is_err() && Plan::decode(&[0; 48]).is_err());
        assert_eq!(Plan::decode(&Plan { inline: None, ..plan.clone() }.encode(place)).map(|(p, _)| p.inline), Ok(None));
        assert!(Plan::decode(&Plan { rdm: false, ..plan.clone() }.encode(place)).is_err(), "tags without what has them");
        assert!(Plan::decode(&Plan { list: 18, ..plan.clone() }.encode(place)).is_err(), "a list beyond the depth");
        assert!(Plan::decode(&Plan { test: Test::ReadLat, ..plan.clone() }.encode(place)).is_err(), "latency in both directions");
        for field in [8..9, 10..12, 12..16, 16..20, 24..32] {
            let mut bad = bytes.clone();
            bad[field.clone()].fill(0xFF);
            assert!(Plan::decode(&bad).is_err(), "{field:?}");
        }
        let answer = Answer { place, registration_ns: 3, token: 9 };
        assert_eq!((Answer::decode(&answer.encode()), Answer::decode(&bytes[..32])), (Some(answer), None));
        assert_eq!((decode_join(&encode_join(9, 63)), decode_join(&bytes)), (Some((9, 63)), None));
        assert_eq!((open_envelope(&envelope(Kinds::Bye)), open_envelope(&[0; 16])), (Some(7), None));
        assert_eq!(clip("aä", 2), b"a");
    }
}
