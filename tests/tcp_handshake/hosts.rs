// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hosts that have keys of their own and know each other's public keys: the permitted connections, and the errors on each side.

use crate::peers::*;
use gdrfab::error::errno;
use gdrfab::prov::Request as _;
use gdrfab::prov::tcp::secure::auth::{Key, Keys};
use gdrfab::prov::tcp::wire::hello::{HEAD_LEN, HELLO_LEN, Head, Hello, STATIC_SINCE, Status};
use gdrfab::prov::tcp::{Address, Dial, HandshakeAcceptor, Purpose};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

#[test]
fn two_that_know_each_other_meet() {
    for (seal, listed) in [(true, "127.0.0.1"), (true, "*"), (false, "127.0.0.1")] {
        let of = |keys| Some(Key::of(Keys::Hosts(keys), seal).unwrap());
        let mut acceptor = acceptor(of(known(1, &[("192.0.2.1", 3), ("192.0.2.2", 2)])));
        let mut dial = dial(acceptor.local(), of(known(2, &[(listed, 1), ("192.0.2.1", 3)])));
        let request = request(&mut acceptor, &mut dial);
        assert_eq!(request.data(), b"hello");
        let theirs = request.accept(terms(b"welcome")).unwrap();
        let (link, got) = accepted(&mut dial);
        assert_eq!((got.data, link.seal.is_some(), theirs.seal.is_some()), (b"welcome".to_vec(), seal, seal));
    }
}

/// A host calls itself; all its processes have the same file.
#[test]
fn a_host_knows_itself() {
    let key = host(1, &[("127.0.0.1", 1)]);
    let mut acceptor = acceptor(key.clone());
    let mut dial = dial(acceptor.local(), key);
    request(&mut acceptor, &mut dial).accept(terms(b"")).unwrap();
    accepted(&mut dial);
}

#[test]
fn a_peer_that_is_not_listed_or_has_another_kind_of_key_gets_a_reason() {
    let listener = || host(1, &[("*", 2)]);
    let unsealed = |own, peer| Some(Key::of(Keys::Hosts(known(own, &[("*", peer)])), false).unwrap());
    for (ours, theirs, errno, words) in [
        (host(3, &[("*", 1)]), listener(), errno::EKEYREJECTED, "does not permit this side's key"),
        (host(2, &[("*", 4)]), listener(), errno::EKEYREJECTED, "GDRFAB_TCP_KEY_FILE has for its host"),
        (secret(2), listener(), errno::EACCES, "has a shared key"),
        (listener(), secret(2), errno::EACCES, "has a shared key"),
        (None, listener(), errno::EACCES, "requires a key"),
        (listener(), None, errno::EACCES, "requires a key"),
        (unsealed(2, 1), listener(), errno::EACCES, "encrypts the connection"),
        (host(2, &[("192.0.2.1", 1)]), listener(), errno::EACCES, "no line has a key for 127.0.0.1"),
        (host(2, &[("*", 1), ("*", 3)]), listener(), errno::EACCES, "lines 2 and 3"),
    ] {
        let mut acceptor = acceptor(theirs);
        let to = Address::of(acceptor.local(), None);
        let dialed = Dial::new(&to, None, Purpose::Passive, 0, terms(b"hello"), ours);
        let e = dialed.map_or_else(|e| e, |mut dial| failure(Some(&mut acceptor), &mut dial));
        assert!(e.errno == errno && e.words.contains(words), "{words}: {e}");
        // A dialer that gives up is noticed only when the listener is polled.
        while acceptor.pending() > 0 {
            assert!(acceptor.poll().is_empty());
            nap();
        }
    }
}

/// An attacker who has seen every public key and every handshake has no private key.
#[test]
fn public_keys_alone_prove_nothing() {
    let mut acceptor = acceptor(host(1, &[("*", 2)]));
    let good = host(2, &[("*", 1)]).unwrap();
    for own in [9, 1] {
        // It claims to be the second host.
        let mut raw = Raw::greet(&mut acceptor, hello_of(&good, 5));
        assert_eq!((raw.challenge().status, raw.challenge().id), (Status::Good, host(1, &[("*", 2)]).unwrap().id()));
        let body = terms(b"let me in").encode().unwrap();
        raw.stream.write_all(&intro(&raw.transcript, Some((&host(own, &[("*", 1)]).unwrap(), &raw.stream)), &body)).unwrap();
        let head = Head::decode(&answer::<HEAD_LEN>(&mut acceptor, &mut raw.stream).unwrap()).unwrap();
        assert_eq!((head.status, head.body, own), (Status::KeyWrong, 0, own));
    }
    // And a listener that claims to be the first host.
    let (listener, id) = (TcpListener::bind(LOOPBACK).unwrap(), host(1, &[("*", 2)]).unwrap().id());
    let at = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, mut bytes) = (listener.accept().unwrap().0, [0; HELLO_LEN]);
        stream.read_exact(&mut bytes).unwrap();
        let said = Hello::decode(&bytes).unwrap();
        let challenge = Hello { id, lowest: STATIC_SINCE, highest: STATIC_SINCE, nonce: [7; 32], ..said }.encode();
        stream.write_all(&challenge).unwrap();
        let mut head = [0; HEAD_LEN];
        stream.read_exact(&mut head).unwrap();
        let mut body = vec![0; Head::decode(&head).unwrap().body];
        stream.read_exact(&mut body).unwrap();
        stream.write_all(&[&head, &body[..]].concat()).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let e = failure(None, &mut dial(at, Some(good)));
    assert!(e.errno == errno::EACCES && e.words.contains("did not prove"), "{e}");
    thread.join().unwrap();
}

/// Nothing missing in an introduction is made up: cut after its length was announced, or in the middle of the connection.
#[test]
fn a_shorter_introduction_is_none() {
    let (key, mut acceptor) = (host(2, &[("*", 1)]).unwrap(), acceptor(host(1, &[("*", 2)])));
    let body = terms(b"").encode().unwrap();
    let all = body.len() + HEAD_LEN;
    for len in 0..all {
        let mut raw = Raw::greet(&mut acceptor, hello_of(&key, 5));
        let bytes = intro(&raw.transcript, Some((&key, &raw.stream)), &body);
        let mut head = Head::decode(bytes[..HEAD_LEN].try_into().unwrap()).unwrap();
        if let Some(cut) = len.checked_sub(HEAD_LEN) {
            head.body = cut;
            raw.stream.write_all(&[&head.encode(), &bytes[HEAD_LEN..HEAD_LEN + cut]].concat()).unwrap();
            assert_eq!(Head::decode(&answer(&mut acceptor, &mut raw.stream).unwrap()).unwrap().status, Status::KeyWrong, "{len}");
        } else {
            raw.stream.write_all(&bytes[..len]).unwrap();
            raw.stream.shutdown(Shutdown::Write).unwrap();
            assert!(answer::<1>(&mut acceptor, &mut raw.stream).is_none(), "{len}");
        }
        assert_eq!(acceptor.pending(), 0);
    }
    for len in 0..HELLO_LEN {
        let mut stream = TcpStream::connect(acceptor.local()).unwrap();
        stream.write_all(&hello_of(&key, 5).encode()[..len]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(answer::<1>(&mut acceptor, &mut stream).is_none(), "{len}");
    }
    let mut good = dial(acceptor.local(), Some(key));
    request(&mut acceptor, &mut good).accept(terms(b"")).unwrap();
    accepted(&mut good);
}

/// Streams and rails belong to the same two hosts: only the peer may open them, from any address and to any address.
#[test]
fn streams_and_rails_are_for_the_connections_peer_alone() {
    let mut acceptor = acceptor(host(1, &[("*", 2), ("*", 3)]));
    let ours = host(2, &[("localhost", 1)]);
    let to = format!("tcp://localhost:{}", acceptor.local().port()).parse().unwrap();
    let mut first = Dial::new(&to, None, Purpose::Passive, 0, terms(b""), ours.clone()).unwrap();
    let asked = request(&mut acceptor, &mut first);
    let mut door = HandshakeAcceptor::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), Purpose::Stream, 77, asked.key()).unwrap();
    asked.accept(terms(b"")).unwrap();
    let (link, _) = accepted(&mut first);
    let at = Address::of(door.local(), None);
    let call = |key| Dial::new(&at, None, Purpose::Stream, 77, terms(b""), key);
    let e = failure(Some(&mut door), &mut call(host(3, &[("*", 1)])).unwrap());
    assert_eq!(e.errno, errno::EKEYREJECTED, "{e}");
    // An address that the file does not name.
    assert_eq!(call(ours).err().expect("no key for it").errno, errno::EACCES);
    let mut second = call(link.key).unwrap();
    request(&mut door, &mut second).accept(terms(b"")).unwrap();
    accepted(&mut second);
}

#[test]
fn versions_without_such_keys_are_told() {
    let mut acceptor = acceptor(host(1, &[("*", 2)]));
    let mut raw = Raw::greet(&mut acceptor, Hello { highest: STATIC_SINCE - 1, ..hello(true, 1) });
    assert_eq!((raw.challenge().status, raw.transcript.challenge[8..12].to_vec()), (Status::Version, vec![6, 0, 7, 0]));
    assert!(answer::<1>(&mut acceptor, &mut raw.stream).is_none());
    // A HELLO that an older listener would understand reaches it, but its lowest version is too high for that listener.
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let mut dial = dial(listener.local_addr().unwrap(), host(2, &[("*", 1)]));
    let thread = std::thread::spawn(move || {
        let (mut stream, mut bytes) = (listener.accept().unwrap().0, [0; HELLO_LEN]);
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!((bytes[8], bytes[10], bytes[12] & 8), (6, 7, 8));
        // The dialer asked for a host's own key, and a shared key is offered.
        stream.write_all(&Hello { lowest: 5, highest: 5, ..hello(true, 1) }.encode()).unwrap();
    });
    let e = failure(None, &mut dial);
    assert_eq!(e.errno, errno::EPROTONOSUPPORT, "{e}");
    thread.join().unwrap();
}
