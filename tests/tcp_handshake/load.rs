// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A listener among thousands of half-open connections.

use crate::peers::*;
use gdrfab::error::errno;
use gdrfab::prov::EventQueue;
use gdrfab::prov::PassiveEndpoint;
use gdrfab::prov::info::{Info, Secret};
use gdrfab::prov::request::own_request;
use gdrfab::prov::tcp::wire::hello::{HELLO_LEN, Hello, Status};
use gdrfab::prov::tcp::{Address, Dial, Dialed, HandshakeAcceptor, Listener, Purpose, Request};
use gdrfab::sys::epoll::{Poller, Woken};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Bytes of memory that this process uses.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Allows thousands of descriptors, as far as this user may.
fn more_descriptors() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |n| n as usize)
}

/// Serves a dialer that comes behind all pending ones; returns the time that it took.
fn serve_one(acceptor: &mut HandshakeAcceptor, most: usize) -> Duration {
    let start = Instant::now();
    let mut good = dial(acceptor.local(), None);
    loop {
        assert!(start.elapsed() < LIMIT, "not served");
        let requests = acceptor.poll();
        assert!(acceptor.pending() <= most);
        if let Some(request) = requests.into_iter().next() {
            request.accept(terms(b"")).unwrap();
            accepted(&mut good);
            return start.elapsed();
        }
        assert!(matches!(good.advance(), Ok(Dialed::Waiting)));
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn half_open_connections_make_room() {
    let mut acceptor = acceptor(None);
    // Each sends half of a HELLO and no more.
    let half: Vec<TcpStream> = (0..200)
        .map(|i| {
            let mut s = TcpStream::connect(acceptor.local()).unwrap();
            s.write_all(&hello(false, i as u8).encode()[..32]).unwrap();
            assert!(acceptor.poll().is_empty());
            s
        })
        .collect();
    assert_eq!(acceptor.pending(), 64);
    let took = serve_one(&mut acceptor, 64);
    assert!(took < Duration::from_secs(2), "{took:?}");
    // Connections that were dropped to make room were told so.
    let told = half.iter().filter(|s| {
        s.set_nonblocking(true).unwrap();
        let mut got = [0; HELLO_LEN];
        matches!((&mut &**s).read(&mut got), Ok(HELLO_LEN)) && Hello::decode(&got).unwrap().status == Status::Busy
    });
    assert!(told.count() >= 130);
}

/// Other tests of this process use descriptors and memory too, so the bounds have some slack.
#[test]
fn two_thousand_silent_connections_cost_little() {
    let room = more_descriptors();
    let count = 2000.min(room.saturating_sub(512));
    assert!(count > 300, "no descriptors to try it with: {room}");
    let mut acceptor = acceptor(None);
    assert!(acceptor.poll().is_empty());
    let before = (descriptors(), resident());
    let at = acceptor.local();
    let silent: Vec<TcpStream> = (0..count).map(|_| TcpStream::connect(at).unwrap()).collect();
    assert!(acceptor.poll().is_empty());
    let took = serve_one(&mut acceptor, 64);
    let after = (descriptors(), resident());
    let grown = after.1.saturating_sub(before.1);
    println!("{count} silent: served after {took:?}, {} descriptors, {} KiB more", after.0 - before.0, grown / 1024);
    assert!(after.0 - before.0 <= count + 64 + 64, "{before:?} {after:?}");
    assert!(grown < 16 << 20, "{before:?} {after:?}");
    assert!(took < Duration::from_secs(8), "{took:?}");
    drop(silent);
}

#[test]
fn a_full_listener_lets_its_sleeper_sleep_and_wakes_it_in_time() {
    let mut acceptor = acceptor(None);
    let poller = Poller::new().unwrap();
    acceptor.watch(&poller).unwrap();
    let silent: Vec<TcpStream> = (0..80).map(|_| TcpStream::connect(acceptor.local()).unwrap()).collect();
    assert!(poller.wait(Some(1_000_000_000)) == Woken::Ready);
    let start = Instant::now();
    while acceptor.pending() < 64 {
        assert!(acceptor.poll().is_empty() && start.elapsed() < LIMIT);
    }
    acceptor.watch(&poller).unwrap();
    // Sixteen wait in the kernel's queue, and the acceptor has nothing to do about them yet.
    let woken = poller.wait(Some(30_000_000));
    assert!(woken == Woken::Timeout || start.elapsed() > Duration::from_millis(90));
    assert!(poller.wait(Some(1_000_000_000)) == Woken::Ready && start.elapsed() > Duration::from_millis(90));
    let mut served = 0;
    while served < 16 && start.elapsed() < LIMIT {
        assert!(acceptor.poll().is_empty());
        acceptor.watch(&poller).unwrap();
        served = silent
            .iter()
            .filter(|s| {
                s.set_nonblocking(true).unwrap();
                s.peek(&mut [0; 1]).is_ok()
            })
            .count();
        nap();
    }
    assert_eq!((served, acceptor.pending()), (16, 64));
}

#[test]
fn a_passive_endpoint_tells_its_queue() {
    let open = |info: &Info| Listener::open(info).map(|listener| PassiveEndpoint::new(Box::new(listener), 42));
    let info = Info { auth_key: Some(Secret::new(&[8; 32]).unwrap()), ..Info::default() };
    let pep = open(&info).unwrap();
    let address: Address = pep.address().parse().unwrap();
    assert!(address.port() != 0 && pep.address().starts_with("tcp://127.0.0.1:"), "{address}");
    assert_eq!(pep.listen().unwrap_err().errno, errno::ENOEQ);
    let queue = Arc::new(EventQueue::default());
    pep.set_object(7);
    pep.bind(queue.clone()).unwrap();
    assert_eq!(pep.bind(queue.clone()).unwrap_err().errno, errno::EBUSY);
    pep.listen().unwrap();
    assert_eq!(pep.listen().unwrap_err().errno, errno::EOPBADSTATE);
    let poller = Poller::new().unwrap();
    pep.watch(&poller).unwrap();
    let mut dial = Dial::new(&address, None, Purpose::Passive, 0, terms(b"who"), secret(8)).unwrap();
    let start = Instant::now();
    while queue.is_empty() && start.elapsed() < LIMIT {
        assert!(matches!(dial.advance(), Ok(Dialed::Waiting)));
        pep.watch(&poller).unwrap();
        poller.wait(Some(1_000_000));
        pep.announce(pep.poll());
    }
    let (_, event) = queue.take_if(|e| (true, e.kind)).unwrap();
    let event = event.unwrap();
    assert_eq!((event.object, event.context, &event.data[..]), (7, 42, &b"who"[..]));
    let request: Request = own_request(event.request.expect("a request")).unwrap();
    request.accept(terms(b"")).unwrap();
    accepted(&mut dial);
    // The port is in use, and an endpoint's own address cannot be listened on.
    let taken = Info { src_addr: Some(pep.address().into()), ..Info::default() };
    let e = open(&taken).err().expect("two listeners on one port");
    assert!(e.errno == errno::EADDRINUSE && e.words.contains(&address.port().to_string()), "{e}");
    for bad in ["shm://x", "tcp://127.0.0.1:1/0123456789abcdef", "tcp://192.0.2.1:0"] {
        let info = Info { src_addr: Some(bad.into()), ..Info::default() };
        assert!(open(&info).is_err(), "{bad}");
    }
}
