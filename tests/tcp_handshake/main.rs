// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The handshake of the tcp provider over real sockets of the loopback: with good peers, and with peers that lie, are slow, or come by the
//! thousand.

mod hosts;
mod load;
mod peers;

use gdrfab::error::{Code, errno};
use gdrfab::prov::Request as _;
use gdrfab::prov::tcp::secure::auth::{Key, Transcript};
use gdrfab::prov::tcp::wire::hello::{HEAD_LEN, HELLO_LEN, Head, Hello, Status};
use gdrfab::prov::tcp::{Address, Dial, Dialed, HandshakeAcceptor, Purpose};
use gdrfab::sys::epoll::{Poller, Woken};
use gdrfab::sys::tcp;
use peers::*;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

#[test]
fn good_peers_meet_and_nothing_behind_the_handshake_is_taken() {
    for (at, key, purpose, token) in [
        (LOOPBACK, None, Purpose::Passive, 0),
        (LOOPBACK, secret(1), Purpose::Passive, 0),
        (LOOPBACK, unsealed(1), Purpose::Passive, 0),
        (LOOPBACK, secret(1), Purpose::Endpoint, 0x0123_4567_89ab_cdef),
        (SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0), secret(2), Purpose::Endpoint, u64::MAX),
    ] {
        let is_sealed = key.as_ref().is_some_and(|key| key.seal);
        let Ok(mut acceptor) = HandshakeAcceptor::listen(at, purpose, token, key.clone()) else {
            assert!(at.is_ipv6(), "{at}");
            continue; // a host without IPv6
        };
        let to = Address::of(acceptor.local(), Some(token));
        let mut dial = Dial::new(&to, Some(SocketAddr::new(at.ip(), 0)), purpose, token, terms(&[9; 256]), key).unwrap();
        let poller = Poller::new().unwrap();
        acceptor.watch(&poller).unwrap();
        let request = request(&mut acceptor, &mut dial);
        assert_eq!((request.data(), request.terms()), (&[9; 256][..], &terms(&[9; 256])));
        assert_eq!((request.peer().ip(), acceptor.pending()), (at.ip(), 0));
        // The first frame of the accepting side follows its ANSWER at once.
        let mut theirs = stream(request.accept(terms(b"welcome")).unwrap());
        theirs.write_all(b"frame").unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let (link, got) = accepted(&mut dial);
        assert_eq!(link.seal.is_some(), is_sealed);
        assert_eq!(got, terms(b"welcome"));
        assert!(dial.fd().is_none() && dial.advance().is_err());
        let mut ours = stream(link);
        let mut buf = [0; 5];
        ours.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"frame");
        ours.write_all(b"ready").unwrap();
        // That byte belongs to the connection now, so the acceptor does not wake anybody for it.
        assert!(acceptor.poll().is_empty());
        assert!(poller.wait(Some(5_000_000)) == Woken::Timeout);
        theirs.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"ready");
    }
}

#[test]
fn a_dialer_that_runs_ahead_loses_nothing() {
    let mut acceptor = acceptor(None);
    let mut raw = TcpStream::connect(acceptor.local()).unwrap();
    let transcript = Transcript { hello: hello(false, 1).encode(), challenge: [0; HELLO_LEN] };
    let all = [&transcript.hello[..], &intro(&transcript, None, &terms(b"x").encode().unwrap()), b"frame"].concat();
    raw.write_all(&all).unwrap();
    let request = one_request(&mut acceptor);
    assert_eq!(request.data(), b"x");
    let mut theirs = stream(request.accept(terms(b"")).unwrap());
    let mut buf = [0; 5];
    theirs.read_exact(&mut buf).unwrap();
    assert_eq!(&buf, b"frame");
}

#[test]
fn a_request_is_turned_down_with_data_or_by_forgetting_it() {
    for key in [None, secret(3)] {
        let mut acceptor = acceptor(key.clone());
        let mut one = dial(acceptor.local(), key.clone());
        Box::new(request(&mut acceptor, &mut one)).reject(b"not today").unwrap();
        assert!(matches!(outcome(None, &mut one), Ok(Dialed::Rejected(data)) if data == b"not today"));
        let mut two = dial(acceptor.local(), key.clone());
        drop(request(&mut acceptor, &mut two));
        assert!(matches!(outcome(None, &mut two), Ok(Dialed::Rejected(data)) if data.is_empty()));
        let mut three = dial(acceptor.local(), key);
        let request = request(&mut acceptor, &mut three);
        assert_eq!(Box::new(request).reject(&[0; 257]).unwrap_err().errno, errno::EINVAL);
    }
}

#[test]
fn keys_must_be_there_on_both_sides_and_be_the_same() {
    for (ours, theirs, words) in [
        (secret(1), secret(2), "a different key"),
        (secret(1), None, "requires a key"),
        (None, secret(1), "requires a key"),
        (secret(1), unsealed(1), "encrypts the connection"),
        (unsealed(1), secret(1), "encrypts the connection"),
    ] {
        let mut acceptor = acceptor(theirs);
        let mut dial = dial(acceptor.local(), ours);
        let e = failure(Some(&mut acceptor), &mut dial);
        assert!(
            e.errno == errno::EACCES && e.code == Code::None && e.words.contains(words) && e.words.contains(&acceptor.local().to_string()),
            "{e}"
        );
        assert_eq!(acceptor.pending(), 0);
    }
}

/// Keys of a dialer and a listener that may connect: a shared one, or one of each host.
fn pairs() -> [(Key, Key); 2] {
    [(secret(4), secret(4)), (host(4, &[("127.0.0.1", 5)]), host(5, &[("*", 4)]))].map(|(one, other)| (one.unwrap(), other.unwrap()))
}

#[test]
fn an_introduction_is_good_for_one_connection() {
    for (key, theirs) in pairs() {
        let mut acceptor = acceptor(Some(theirs));
        let body = terms(b"once").encode().unwrap();
        let mut first = Raw::greet(&mut acceptor, hello_of(&key, 5));
        let good = intro(&first.transcript, Some((&key, &first.stream)), &body);
        first.stream.write_all(&good).unwrap();
        drop(one_request(&mut acceptor));
        // The dialer replays its nonce and its INTRO, but the listener's nonce is a new one.
        let mut again = Raw::greet(&mut acceptor, hello_of(&key, 5));
        assert_ne!(again.challenge().nonce, first.challenge().nonce);
        again.stream.write_all(&good).unwrap();
        let head = Head::decode(&answer::<HEAD_LEN>(&mut acceptor, &mut again.stream).unwrap()).unwrap();
        assert_eq!((head.status, head.body, head.ephemeral), (Status::KeyWrong, 0, [0; 32]));
        assert!(answer::<1>(&mut acceptor, &mut again.stream).is_none());
        // A changed body is not accepted either.
        let mut third = Raw::greet(&mut acceptor, hello_of(&key, 6));
        let mut bent = intro(&third.transcript, Some((&key, &third.stream)), &body);
        *bent.last_mut().unwrap() ^= 1;
        third.stream.write_all(&bent).unwrap();
        assert_eq!(Head::decode(&answer(&mut acceptor, &mut third.stream).unwrap()).unwrap().status, Status::KeyWrong);
    }
}

/// As soon as anybody between them changes anything, dialer and listener have seen different handshakes.
#[test]
fn changes_on_the_path_are_found() {
    for (key, theirs) in pairs() {
        let mut acceptor = acceptor(Some(theirs));
        let body = terms(b"x").encode().unwrap();
        let mut refuses = |bend: &dyn Fn(&mut Transcript, &mut SocketAddr, &mut SocketAddr)| {
            let mut raw = Raw::greet(&mut acceptor, hello_of(&key, 5));
            let (mut own, mut peer) = (raw.stream.local_addr().unwrap(), raw.stream.peer_addr().unwrap());
            bend(&mut raw.transcript, &mut own, &mut peer);
            raw.stream.write_all(&intro_between(&raw.transcript, &key, own, peer, &body)).unwrap();
            let refusal = answer(&mut acceptor, &mut raw.stream).map(|bytes| Head::decode(&bytes).unwrap().status);
            assert!(refusal.is_none_or(|status| status == Status::KeyWrong) && acceptor.pending() == 0);
            refusal.is_some()
        };
        // Another version, no seal, another cipher, another nonce: changed in the hello or in the challenge.
        for (at, bit) in [(8, 1), (10, 4), (12, 2), (12, 4), (13, 1), (16, 1), (47, 0x80)] {
            assert!(refuses(&|t, _, _| t.hello[at] ^= bit), "{at} {bit}");
            // The challenge selects the cipher: one that was changed there opens nothing either.
            assert!(refuses(&|t, _, _| t.challenge[at] ^= bit), "{at} {bit}");
        }
        // A shared key instead of the host's own; the key of another host.
        for (at, bit) in [(12, 8), (48, 1), (63, 0x80)] {
            assert!(refuses(&|t, _, _| t.hello[at] ^= bit), "{at} {bit}");
        }
        // A relay: one of the two is at another address than the other believes.
        assert!(refuses(&|_, own, _| own.set_port(own.port() ^ 1)));
        assert!(refuses(&|_, _, peer| peer.set_port(peer.port() ^ 1)));
        assert!(refuses(&|_, own, _| own.set_ip(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)))));
        assert!(refuses(&|_, _, peer| peer.set_ip(IpAddr::V6(Ipv6Addr::LOCALHOST))));
        assert!(refuses(&|_, own, peer| std::mem::swap(own, peer)));
    }
}

/// Two hosts that trust each other, and one between them that passes on everything unchanged.
#[test]
fn a_relay_gets_nobody_connected() {
    for (key, theirs) in pairs() {
        let errno = if key.id().is_some() { errno::EKEYREJECTED } else { errno::EACCES };
        let mut acceptor = acceptor(Some(theirs));
        let (there, back) = (TcpListener::bind(LOOPBACK).unwrap(), acceptor.local());
        let mut dial = dial(there.local_addr().unwrap(), Some(key));
        let thread = std::thread::spawn(move || {
            let (dialer, listener) = (there.accept().unwrap().0, TcpStream::connect(back).unwrap());
            let pass = |mut from: TcpStream, mut to: TcpStream| std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let up = pass(dialer.try_clone().unwrap(), listener.try_clone().unwrap());
            pass(listener, dialer.try_clone().unwrap()).join().unwrap().ok();
            dialer.shutdown(std::net::Shutdown::Both).ok();
            up.join().unwrap().ok();
        });
        let e = failure(Some(&mut acceptor), &mut dial);
        assert!(e.errno == errno && (e.words.contains("a different key") || e.words.contains("tampered with")), "{e}");
        drop(acceptor);
        thread.join().unwrap();
    }
}

#[test]
fn the_body_of_an_unproven_introduction_is_not_looked_at() {
    let mut acceptor = acceptor(secret(1));
    let mut raw = Raw::greet(&mut acceptor, hello(true, 1));
    let bad = intro(&raw.transcript, Some((&secret(2).unwrap(), &raw.stream)), &[0xff; 992]);
    raw.stream.write_all(&bad).unwrap();
    assert_eq!(Head::decode(&answer(&mut acceptor, &mut raw.stream).unwrap()).unwrap().status, Status::KeyWrong);
}

#[test]
fn without_a_common_version_the_listener_says_which_it_has() {
    let mut acceptor = acceptor(None);
    let mut raw = Raw::greet(&mut acceptor, Hello { lowest: 8, highest: 9, ..hello(false, 1) });
    assert_eq!(raw.transcript.challenge[8..12], [1, 0, 7, 0]);
    assert_eq!(raw.challenge().status, Status::Version);
    assert!(answer::<1>(&mut acceptor, &mut raw.stream).is_none());
}

/// A hand-made listener, which answers a HELLO with the result of `reply`.
fn listener(reply: impl FnOnce([u8; HELLO_LEN], &mut TcpStream) + Send + 'static) -> (SocketAddr, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let at = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; HELLO_LEN];
        stream.read_exact(&mut hello).unwrap();
        reply(hello, &mut stream);
        // Until the dialer disconnects, so that nothing is lost.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    (at, thread)
}

#[test]
fn a_dialer_believes_no_listener_that_lies() {
    type Reply = fn([u8; HELLO_LEN], &mut TcpStream);
    let cases: [(&str, Option<Key>, i32, Reply); 9] = [
        ("version", None, errno::EPROTONOSUPPORT, |_, s| {
            let refusal = Hello { lowest: 0, highest: 0, status: Status::Version, ..hello(false, 1) };
            s.write_all(&refusal.encode()).unwrap();
        }),
        ("a range instead of a version", None, errno::EPROTONOSUPPORT, |_, s| {
            s.write_all(&Hello { highest: 2, ..hello(false, 1) }.encode()).unwrap();
        }),
        ("no key", secret(1), errno::EACCES, |_, s| s.write_all(&hello(false, 1).encode()).unwrap()),
        ("no proof", secret(1), errno::EACCES, |_, s| {
            s.write_all(&hello(true, 1).encode()).unwrap();
            let body = terms(b"trust me").encode().unwrap();
            let head = Head { body: body.len(), status: Status::Good, token: 0, ephemeral: [0; 32] };
            s.write_all(&[&head.encode(), &body[..]].concat()).unwrap();
        }),
        ("the dialer's own proof", secret(1), errno::EACCES, |_, s| {
            s.write_all(&hello(true, 1).encode()).unwrap();
            let mut intro = [0; HEAD_LEN];
            s.read_exact(&mut intro).unwrap();
            let mut body = vec![0; Head::decode(&intro).unwrap().body];
            s.read_exact(&mut body).unwrap();
            s.write_all(&[&intro, &body[..]].concat()).unwrap();
        }),
        ("garbage", None, errno::EPROTO, |_, s| s.write_all(&[b'x'; HELLO_LEN]).unwrap()),
        ("busy", None, errno::ECONNREFUSED, |_, s| s.write_all(&Hello { status: Status::Busy, ..hello(false, 0) }.encode()).unwrap()),
        ("an echo", None, errno::ECONNREFUSED, |hello, s| s.write_all(&hello).unwrap()),
        ("a giant", None, errno::EPROTO, |_, s| {
            s.write_all(&hello(false, 1).encode()).unwrap();
            s.write_all(&[0xff; HEAD_LEN]).unwrap();
        }),
    ];
    for (name, key, errno, reply) in cases {
        let (at, thread) = listener(reply);
        let mut dial = dial(at, key);
        let e = failure(None, &mut dial);
        assert!(e.errno == errno && e.words.contains(&at.to_string()), "{name}: {e}");
        thread.join().unwrap();
    }
}

#[test]
fn a_dialer_says_what_it_met() {
    let (at, thread) = listener(|_, s| s.shutdown(std::net::Shutdown::Both).unwrap());
    let e = failure(None, &mut dial(at, None));
    assert!(e.errno == errno::ECONNREFUSED && e.code == Code::PeerGone, "{e}");
    thread.join().unwrap();
    // Bound, so that nobody else gets the port, and not listening.
    let deaf = tcp::bind(LOOPBACK).unwrap();
    let free = tcp::local(deaf.as_fd()).unwrap();
    let e = Dial::new(&Address::of(free, None), None, Purpose::Passive, 0, terms(b""), None).and_then(|mut d| outcome(None, &mut d));
    let e = e.err().expect("connected to nobody");
    assert!(e.errno == errno::ECONNREFUSED && e.words.contains(&free.to_string()), "{e}");
    for (address, from, errno) in [
        ("tcp://127.0.0.1", None, errno::EINVAL),
        ("tcp://127.0.0.1:1", Some(IpAddr::V6(Ipv6Addr::LOCALHOST)), errno::EADDRNOTAVAIL),
        ("tcp://127.0.0.1:1", Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))), errno::EADDRNOTAVAIL),
    ] {
        let e = Dial::new(&address.parse().unwrap(), from.map(|ip| SocketAddr::new(ip, 0)), Purpose::Passive, 0, terms(b""), None)
            .err()
            .expect(address);
        assert_eq!(e.errno, errno, "{address}: {e}");
    }
    let e = Dial::new(&Address::of(free, None), None, Purpose::Passive, 0, terms(&[0; 257]), None).err().expect("too much data");
    assert_eq!(e.errno, errno::EINVAL);
}

#[test]
fn every_address_of_a_name_is_tried() {
    let mut acceptor = acceptor(None);
    let to = format!("tcp://localhost:{}", acceptor.local().port()).parse().unwrap();
    let mut dial = Dial::new(&to, None, Purpose::Passive, 0, terms(b""), None).unwrap();
    request(&mut acceptor, &mut dial).accept(terms(b"")).unwrap();
    accepted(&mut dial);
}

#[test]
fn another_door_stays_shut() {
    let mut acceptor = HandshakeAcceptor::listen(LOOPBACK, Purpose::Endpoint, 77, None).unwrap();
    let to = Address::of(acceptor.local(), None);
    for (purpose, token) in [(Purpose::Passive, 0), (Purpose::Passive, 77), (Purpose::Endpoint, 0), (Purpose::Endpoint, 78)] {
        let mut dial = Dial::new(&to, None, purpose, token, terms(b""), None).unwrap();
        let e = failure(Some(&mut acceptor), &mut dial);
        assert_eq!((e.errno, e.code), (errno::ECONNREFUSED, Code::None), "{e}");
    }
}

#[test]
fn an_invalid_message_closes_its_connection_and_no_other() {
    let mut acceptor = acceptor(None);
    let body = terms(b"x").encode().unwrap();
    let head = |len: u32, status: u16, rest: &[u8]| {
        let mut bytes = [0; HEAD_LEN];
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4..6].copy_from_slice(&status.to_le_bytes());
        [&bytes, rest].concat()
    };
    let mut giant_data = body.clone();
    let at = giant_data.len() - 3;
    giant_data[at..at + 2].copy_from_slice(&u16::MAX.to_le_bytes());
    for bytes in [
        head(1025, 0, &[]),
        head(u32::MAX, 0, &[]),
        head(body.len() as u32, 1, &body),
        head(body.len() as u32, 99, &body),
        head(0, 0, &[]),
        head(body.len() as u32 + 1, 0, &[&body[..], &[0]].concat()),
        head(giant_data.len() as u32, 0, &giant_data),
    ] {
        let mut raw = Raw::greet(&mut acceptor, hello(false, 1));
        raw.stream.write_all(&bytes).unwrap();
        assert!(answer::<1>(&mut acceptor, &mut raw.stream).is_none());
    }
    for bytes in [&[0u8; HELLO_LEN][..], &[0xff; 4096], b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: nobody in particular\r\n\r\n"] {
        let mut raw = TcpStream::connect(acceptor.local()).unwrap();
        raw.write_all(bytes).unwrap();
        assert!(answer::<1>(&mut acceptor, &mut raw).is_none());
    }
    assert_eq!(acceptor.pending(), 0);
    let mut good = dial(acceptor.local(), None);
    request(&mut acceptor, &mut good).accept(terms(b"")).unwrap();
    accepted(&mut good);
}

#[test]
fn a_peer_that_says_one_byte_at_a_time_is_understood() {
    let key = secret(6);
    let mut acceptor = acceptor(key.clone());
    let mut raw = TcpStream::connect(acceptor.local()).unwrap();
    raw.set_nodelay(true).unwrap();
    let mut transcript = Transcript { hello: hello(true, 1).encode(), challenge: [0; HELLO_LEN] };
    for byte in transcript.hello {
        raw.write_all(&[byte]).unwrap();
        assert!(acceptor.poll().is_empty());
    }
    transcript.challenge = answer(&mut acceptor, &mut raw).unwrap();
    let intro = intro(&transcript, key.as_ref().map(|key| (key, &raw)), &terms(b"slowly").encode().unwrap());
    let (last, most) = intro.split_last().unwrap();
    for byte in most {
        raw.write_all(&[*byte]).unwrap();
        nap();
        assert!(acceptor.poll().is_empty());
    }
    raw.write_all(&[*last]).unwrap();
    assert_eq!(one_request(&mut acceptor).data(), b"slowly");
}
