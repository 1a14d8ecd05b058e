// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sealed connections of the tcp provider as a whole: every operation at sizes around those of records, over sockets that accept little at
//! a time and over several streams; and an attacker on the path who changes, cuts, repeats and swaps bytes.

use gdrfab::error::{Code, Error, errno};
use gdrfab::mr::{Access, Attr, Iov, RegionId, Source};
use gdrfab::prov::bind::{Binding, INJECT_FLAGS};
use gdrfab::prov::info::{Info, Secret};
use gdrfab::prov::op::{Common, Dir, RmaIov};
use gdrfab::prov::ops::OpFlags;
use gdrfab::prov::queue::Taken;
use gdrfab::prov::tcp::secure::noise::{Noise, Proof};
use gdrfab::prov::tcp::secure::seal::{Cipher, Seal};
use gdrfab::prov::tcp::{Domain, Endpoint, HIGHEST, Link, Listener, Terms};
use gdrfab::prov::{Completion, Domain as _, Endpoint as _, EventKind, EventQueue, PassiveEndpoint, Queue};
use gdrfab::sync::serial::Threading;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

/// An event: its kind, and the reason.
type Told = (u32, Option<Error>);

/// Called before anything reads a variable. Further streams are opened wherever a handshake tells the two sides of each other.
fn settings() {
    static ONCE: Once = Once::new();
    // SAFETY: the first action of a test, and nothing else in the process reads variables meanwhile.
    ONCE.call_once(|| unsafe { std::env::set_var("GDRFAB_TCP_STREAMS", "4") });
}

/// The ciphers after a handshake, for dialer and listener.
fn seals(cipher: Cipher) -> (Seal, Seal) {
    let new = |is_dialer| Noise::new(Proof::Shared(&[3; 32]), cipher, b"", is_dialer).unwrap();
    let (mut dialer, mut listener) = (new(true), new(false));
    listener.read(&dialer.write(b"").unwrap()).unwrap();
    dialer.read(&listener.write(b"").unwrap()).unwrap();
    (dialer.split().unwrap(), listener.split().unwrap())
}

struct Side {
    domain: Arc<Domain>,
    ep: Endpoint,
    cq: Arc<Queue>,
    eq: Arc<EventQueue>,
}

impl Side {
    fn new(info: &Info) -> Side {
        settings();
        Side::of(Arc::new(Domain::open(info, Threading::Safe).unwrap()), info)
    }

    fn of(domain: Arc<Domain>, info: &Info) -> Side {
        let ep = Endpoint::open(domain.clone(), info, 7).unwrap();
        let (cq, eq) = (Arc::new(Queue::new(256, Threading::Safe).unwrap()), Arc::new(EventQueue::default()));
        ep.bind(Binding::Cq { queue: cq.clone(), source: None, transmit: true, receive: true, selective: false }).unwrap();
        ep.bind(Binding::Eq(eq.clone())).unwrap();
        ep.enable(OpFlags::default()).unwrap();
        Side { domain, ep, cq, eq }
    }

    fn over(socket: UnixStream, seal: Seal, short: Option<usize>) -> Side {
        Side::new(&Info::default()).adopts(socket, seal, short)
    }

    /// Both are dialers, and so neither waits for READY.
    fn adopts(self, socket: UnixStream, seal: Seal, short: Option<usize>) -> Side {
        let side = self;
        socket.set_nonblocking(true).unwrap();
        let terms = Terms { window: 64, budget: 1 << 20, ..Terms::default() };
        let link = Link { socket: socket.into(), version: HIGHEST, seal: Some(Box::new(seal)), key: None, room: None };
        side.ep.adopt(link, &terms, (64, 1 << 20), true, short).unwrap();
        side
    }

    /// Takes an entry, if there is one; or the error of a failed operation.
    fn entry(&self) -> Option<Result<Completion, (i32, Code)>> {
        self.ep.progress(false);
        let mut got = None;
        match self.cq.take(1, |_, c| got = Some(*c)) {
            Taken::ErrorFirst => self.cq.take_error().map(|(_, failure, _)| Err((failure.error.errno, failure.error.code))),
            _ => got.map(Ok),
        }
    }

    fn event(&self) -> Option<Told> {
        self.eq.take_if(|_| (true, ())).and_then(|(_, event)| event).map(|event| (event.kind, event.error))
    }

    fn register(&self, bytes: &mut [u8]) -> RegionId {
        // SAFETY: the bytes outlive every operation of their test.
        let one = [unsafe { Iov::of_mut(bytes) }];
        self.domain.register(&Attr { source: Source::Iov(&one), ..Attr::plain(Access::REMOTE_WRITE | Access::REMOTE_READ) }).unwrap()
    }

    /// Posts, repeating until there is room.
    fn post(&self, other: &Side, mut post: impl FnMut(&Endpoint) -> gdrfab::error::Result<()>) {
        let start = Instant::now();
        while let Err(e) = post(&self.ep) {
            assert!(e.errno == errno::EAGAIN && start.elapsed() < LIMIT, "{e}");
            self.ep.progress(false);
            other.ep.progress(false);
        }
    }
}

/// Drives both sides until `one` has a completion.
fn await_entry(one: &Side, other: &Side) -> Completion {
    let start = Instant::now();
    loop {
        if let Some(entry) = one.entry() {
            return entry.expect("a failure");
        }
        other.ep.progress(false);
        assert!(start.elapsed() < LIMIT, "no entry");
    }
}

const SIZES: [usize; 13] = [1, 8, 100, 4096, 4097, 16_384, 16_385, 65_504, 65_519, 65_536, 262_144, 300_001, 3_000_000];

fn everything(one: &Side, two: &Side, sizes: &[usize]) {
    let most = *sizes.iter().max().unwrap();
    let pattern = |seed: usize| -> Vec<u8> { (0..most).map(|i| ((i * 7 + seed) % 253) as u8).collect() };
    let mut there = vec![0u8; most];
    let region = two.register(&mut there);
    for (round, &len) in sizes.iter().enumerate() {
        let (from, mut back, mut room) = (pattern(round), vec![0u8; most], vec![0u8; most]);
        // SAFETY: the buffers outlive the operations, whose entries are awaited.
        let (out, back_in, recv) = unsafe {
            (Iov::new(from.as_ptr() as usize, len), Iov::new(back.as_mut_ptr() as usize, len), Iov::new(room.as_mut_ptr() as usize, len))
        };
        let remote = [RmaIov { addr: 0, len, key: region.key }];
        let c = |context| Common { context, ..Common::default() };
        one.post(two, |ep| ep.rma(Dir::Write, &[out], &remote, &c(1), &[]));
        assert_eq!(await_entry(one, two).context, 1);
        assert!(there[..len] == from[..len], "written {len}");
        one.post(two, |ep| ep.rma(Dir::Read, &[back_in], &remote, &c(2), &[]));
        assert_eq!(await_entry(one, two).context, 2);
        assert!(back[..len] == from[..len], "read {len}");
        two.post(one, |ep| ep.recv(&[recv], &c(3), &[]));
        one.post(two, |ep| ep.send(&[out], &c(4), &[]));
        assert_eq!((await_entry(two, one).context, await_entry(one, two).context), (3, 4));
        assert!(room[..len] == from[..len], "sent {len}");
    }
    // Many at once, both ways.
    let (mut slots, values): (Vec<u64>, Vec<u64>) = (vec![0; 200], (1..=200).collect());
    // SAFETY: the buffers outlive the operations, whose entries are awaited.
    let slot = |slots: &mut [u64], i: usize| unsafe { Iov::new(slots[i..].as_mut_ptr() as usize, 8) };
    for i in 0..200 {
        let piece = slot(&mut slots, i);
        two.post(one, |ep| ep.recv(&[piece], &Common::default(), &[]));
    }
    let mut sent = 0;
    for i in 0..200 {
        // SAFETY: the buffers outlive the operations, whose entries are awaited.
        let piece = unsafe { Iov::new(values[i..].as_ptr() as usize, 8) };
        one.post(two, |ep| ep.send(&[piece], &Common::default(), &[]));
        while let Some(entry) = one.entry() {
            entry.unwrap();
            sent += 1;
        }
    }
    (sent..200).for_each(|_| _ = await_entry(one, two));
    (0..200).for_each(|_| _ = await_entry(two, one));
    assert_eq!(slots, values);
    two.domain.close_region(region).unwrap();
}

#[test]
fn every_operation_at_every_size() {
    for (cipher, short) in [(Cipher::Aes, None), (Cipher::ChaCha, None), (Cipher::Aes, Some(5000)), (Cipher::Aes, Some(7))] {
        let (a, b) = UnixStream::pair().unwrap();
        let (ours, theirs) = seals(cipher);
        let (one, two) = (Side::over(a, ours, short), Side::over(b, theirs, short));
        let sizes: &[usize] = if short == Some(7) { &SIZES[..5] } else { &SIZES };
        everything(&two, &one, sizes);
    }
}

fn connected(key: u8) -> (Side, Side) {
    settings();
    let info = Info { auth_key: Some(Secret::new(&[key; 32]).unwrap()), ..Info::default() };
    let (pep, asked) = (PassiveEndpoint::new(Box::new(Listener::open(&info).unwrap()), 1), Arc::new(EventQueue::default()));
    pep.bind(asked.clone()).unwrap();
    pep.listen().unwrap();
    let (one, two) = (Side::new(&info), Side::new(&info));
    one.ep.connect(pep.address(), b"").unwrap();
    let start = Instant::now();
    let mut joined = (false, false);
    while joined != (true, true) {
        assert!(start.elapsed() < LIMIT, "not connected");
        pep.announce(pep.poll());
        if let Some((_, Some(event))) = asked.take_if(|_| (true, ())) {
            two.ep.accept(event.request.expect("a request"), b"").unwrap();
        }
        for (side, up) in [(&one, &mut joined.0), (&two, &mut joined.1)] {
            side.ep.progress(true);
            *up |= side.event().is_some_and(|(kind, _)| kind == EventKind::Connected as u32);
        }
    }
    (one, two)
}

#[test]
fn everything_over_several_sealed_streams() {
    let (one, two) = connected(9);
    everything(&one, &two, &SIZES);
    std::thread::sleep(Duration::from_millis(5));
    everything(&two, &one, &SIZES);
    everything(&one, &two, &[10_000_000, 5_000_001]);
    let mut bytes = vec![0u8; 64];
    let region = two.register(&mut bytes);
    let words = one.ep.report(0, region.key, 0).unwrap().text;
    assert!(words.contains("4 additional streams") && words.contains("sealed"), "{words}");
}

/// Passes bytes on from `from` to `to`, changed by `bend`, which gets their position in the stream.
fn between(mut from: UnixStream, mut to: UnixStream, mut bend: impl FnMut(u64, &mut Vec<u8>) + Send + 'static) {
    std::thread::spawn(move || {
        let (mut buf, mut at) = (vec![0; 64 << 10], 0);
        while let Ok(n @ 1..) = from.read(&mut buf) {
            let mut bytes = buf[..n].to_vec();
            bend(at, &mut bytes);
            at += n as u64;
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}

/// The result of a write of `len` bytes, and whether any byte of it arrived, with an attacker between the two.
fn attacked(
    len: usize,
    patience: Duration,
    bend: impl FnMut(u64, &mut Vec<u8>) + Send + 'static,
) -> (Option<(i32, Code)>, bool, Vec<Told>) {
    let (a, a2) = UnixStream::pair().unwrap();
    let (b, b2) = UnixStream::pair().unwrap();
    between(a2.try_clone().unwrap(), b2.try_clone().unwrap(), bend);
    between(b2, a2, |_, _| {});
    let (ours, theirs) = seals(Cipher::Aes);
    let (one, two) = (Side::over(a, ours, None), Side::over(b, theirs, None));
    let (from, mut there) = (vec![5u8; len], vec![0u8; len]);
    let region = two.register(&mut there);
    // SAFETY: both outlive the connection.
    let piece = unsafe { Iov::new(from.as_ptr() as usize, len) };
    let remote = [RmaIov { addr: 0, len, key: region.key }];
    one.ep.rma(Dir::Write, &[piece], &remote, &Common::default(), &[]).unwrap();
    let (start, mut result, mut events) = (Instant::now(), None, Vec::new());
    while start.elapsed() < patience && (result.is_none() || events.is_empty()) {
        match one.entry() {
            Some(Ok(_)) => return (None, there == from, events),
            Some(Err(e)) => result = Some(e),
            None => {}
        }
        two.ep.progress(false);
        events.extend(two.event());
    }
    (result, there.iter().any(|byte| *byte != 0), events)
}

#[test]
fn somebody_on_the_path_ends_the_connection_and_no_more() {
    let (result, wrote, events) = attacked(1000, LIMIT, |_, _| {});
    assert!(result.is_none() && wrote && events.is_empty());
    // The error text of the connection's end.
    let tells = |events: &[Told]| {
        let (kind, why) = &events[0];
        let why = why.as_ref().expect("a reason");
        assert!(*kind == EventKind::Shutdown as u32 && why.errno == errno::EPROTO && why.code == Code::PeerBroke, "{why}");
        assert!(why.words.contains("tampered with"), "{why}");
    };
    let gone = Some((errno::ECONNRESET, Code::PeerGone));
    // A flipped bit anywhere in a short write: lengths, sealed bytes, tag.
    for place in [0, 1, 2, 30, 500, 1050] {
        let (result, wrote, events) = attacked(1000, if place < 2 { LIMIT / 40 } else { LIMIT }, move |at, bytes| {
            if (at..at + bytes.len() as u64).contains(&place) {
                bytes[(place - at) as usize] ^= 0x10;
            }
        });
        // A receiver waits for a record that was made longer, until the connection's end is reported to its side.
        if events.is_empty() {
            assert!(place < 2 && !wrote, "{place}");
            continue;
        }
        assert_eq!((result, wrote), (gone, false), "{place}");
        tells(&events);
    }
    // The second record of a long write; the first has arrived already, whole or not at all.
    let bit = |at: u64, bytes: &mut Vec<u8>| {
        if (at..at + bytes.len() as u64).contains(&100_000) {
            bytes[(100_000 - at) as usize] ^= 1;
        }
    };
    assert_eq!(attacked(200_000, LIMIT, bit).0, gone);
    // A record repeated, cut short, or removed.
    let again = |at: u64, bytes: &mut Vec<u8>| {
        if at == 0 {
            bytes.extend_from_within(..);
        }
    };
    let (result, _, events) = attacked(1000, LIMIT, again);
    // The first record may have been answered before the second was read.
    assert!(result.is_none() || (result == gone && !events.is_empty()));
    let mut cut = false;
    let first_gone = move |_: u64, bytes: &mut Vec<u8>| {
        if !std::mem::replace(&mut cut, true) {
            let len = 2 + usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
            bytes.drain(..len.min(bytes.len()));
        }
    };
    let (result, wrote, events) = attacked(200_000, LIMIT, first_gone);
    assert_eq!((result, wrote), (gone, false));
    tells(&events);
}

/// One call asks which of many sockets have data, once for all that have arrived until then. Records left from the turn before come first,
/// and data that arrived after them must not be forgotten because of that.
#[test]
fn many_connections_forget_nothing_behind_a_turns_share() {
    settings();
    const MANY: usize = 6;
    let domain = Arc::new(Domain::open(&Info::default(), Threading::Safe).unwrap());
    let pair = |_| {
        let ((here, there), (ours, theirs)) = (UnixStream::pair().unwrap(), seals(Cipher::ChaCha));
        (Side::of(domain.clone(), &Info::default()).adopts(here, ours, None), Side::over(there, theirs, None))
    };
    let sides: Vec<(Side, Side)> = (0..MANY).map(pair).collect();
    let (receiver, sender) = &sides[0];
    let (bytes, mut room) = ([5u8; 8], [0u8; 8]);
    // SAFETY: both outlive the operations.
    let (out, piece) = unsafe { (Iov::new(bytes.as_ptr() as usize, 8), Iov::of_mut(&mut room)) };
    // One record for each: an injected message does not wait for others.
    let inject = |n: usize| (0..n).for_each(|_| sender.ep.send(&[out], &Common { flags: INJECT_FLAGS, ..Common::default() }, &[]).unwrap());
    for round in 0..20 {
        let most = 18 + round;
        (0..=most).for_each(|_| receiver.ep.recv(&[piece], &Common::default(), &[]).unwrap());
        inject(most);
        let start = Instant::now();
        let mut got = 0;
        while got <= most {
            assert!(start.elapsed() < LIMIT, "round {round}: {got} of {} messages came", most + 1);
            sides.iter().for_each(|(here, _)| here.ep.progress(false));
            let before = got;
            while matches!(receiver.cq.take(1, |_, _| ()), Taken::Some(_)) {
                got += 1;
            }
            if before == 0 && got > 0 {
                assert!(got < most, "a turn takes no more than its share");
                inject(1);
            }
        }
        // The progress call learns that there is room again.
        sender.ep.progress(false);
    }
}
