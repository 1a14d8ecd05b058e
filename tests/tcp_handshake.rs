// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The handshake of the tcp provider over real sockets of the loopback: with good peers, and with ones that lie, dawdle,
//! or come by the thousand.

use gdrfab::error::{Code, Error, Result, errno};
use gdrfab::prov::EventQueue;
use gdrfab::prov::info::{Info, Secret};
use gdrfab::prov::request::own_request;
use gdrfab::prov::tcp::auth::{Side, Transcript};
use gdrfab::prov::tcp::hello::{HEAD_LEN, HELLO_LEN, Head, Hello, Status};
use gdrfab::prov::tcp::{Address, Dial, Dialed, Greeter, Listener, Purpose, Request, Terms};
use gdrfab::prov::{PassiveEndpoint, Request as _};
use gdrfab::sys::epoll::{Poller, Woken};
use gdrfab::sys::tcp;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const LIMIT: Duration = Duration::from_secs(20);

fn secret(byte: u8) -> Option<Secret> {
    Some(Secret::new(&[byte; 32]).unwrap())
}

fn greeter(key: Option<Secret>) -> Greeter {
    Greeter::listen(LOOPBACK, Purpose::Passive, 0, key).unwrap()
}

fn terms(data: &[u8]) -> Terms {
    Terms { window: 7, budget: 1 << 20, address: "tcp://127.0.0.1:1".into(), data: data.to_vec(), ..Terms::default() }
}

fn dial(at: SocketAddr, key: Option<Secret>) -> Dial {
    Dial::new(&Address::of(at, None), None, Purpose::Passive, 0, terms(b"hello"), key).unwrap()
}

fn nap() {
    std::thread::sleep(Duration::from_micros(200));
}

/// Drives both until the listener has a request.
fn request(greeter: &mut Greeter, dial: &mut Dial) -> Request {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(request) = greeter.poll().pop() {
            return request;
        }
        assert!(matches!(dial.advance(), Ok(Dialed::Waiting)));
        nap();
    }
    panic!("no request")
}

/// Drives the dialer, and the listener too if there is one, until the dial is over; nothing may be announced.
fn outcome(mut greeter: Option<&mut Greeter>, dial: &mut Dial) -> Result<Dialed> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        match dial.advance() {
            Ok(Dialed::Waiting) => {}
            over => return over,
        }
        if let Some(greeter) = greeter.as_mut() {
            assert!(greeter.poll().is_empty(), "announced");
        }
        nap();
    }
    panic!("the dial does not end")
}

fn failure(greeter: Option<&mut Greeter>, dial: &mut Dial) -> Error {
    match outcome(greeter, dial) {
        Err(e) => e,
        Ok(Dialed::Accepted { .. }) => panic!("accepted"),
        Ok(_) => panic!("rejected"),
    }
}

fn accepted(dial: &mut Dial) -> (OwnedFd, Terms) {
    match outcome(None, dial) {
        Ok(Dialed::Accepted { socket, terms }) => (socket, terms),
        Ok(_) => panic!("rejected"),
        Err(e) => panic!("{e}"),
    }
}

fn stream(fd: OwnedFd) -> TcpStream {
    let stream = TcpStream::from(fd);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// A dialer made by hand.
struct Raw {
    stream: TcpStream,
    transcript: Transcript,
}

fn hello(keyed: bool, nonce: u8) -> Hello {
    Hello { lowest: 1, highest: 1, keyed, purpose: 0, status: Status::Good, nonce: [nonce; 32] }
}

/// An introduction as bytes.
fn intro(transcript: &Transcript, key: Option<&Secret>, body: &[u8]) -> Vec<u8> {
    let mut head = Head { body: body.len(), status: Status::Good, token: 0, proof: [0; 32] };
    if let Some(key) = key {
        head.proof = transcript.proof(key, Side::Dialer, &head.proven(), body).unwrap();
    }
    [&head.encode(), body].concat()
}

/// Drives the listener until the peer's socket has `N` bytes; `None`: it closes first.
fn answer<const N: usize>(greeter: &mut Greeter, stream: &mut TcpStream) -> Option<[u8; N]> {
    stream.set_nonblocking(true).unwrap();
    let (start, mut got, mut have) = (Instant::now(), [0; N], 0);
    while have < N {
        assert!(start.elapsed() < LIMIT, "no answer");
        assert!(greeter.poll().is_empty(), "announced");
        match stream.read(&mut got[have..]) {
            Ok(0) => return None,
            Ok(n) => have += n,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => nap(),
            Err(_) => return None,
        }
    }
    stream.set_nonblocking(false).unwrap();
    Some(got)
}

impl Raw {
    /// Says `hello` and hears the challenge.
    fn greet(greeter: &mut Greeter, hello: Hello) -> Raw {
        let mut stream = TcpStream::connect(greeter.local()).unwrap();
        let hello = hello.encode();
        stream.write_all(&hello).unwrap();
        let challenge = answer::<HELLO_LEN>(greeter, &mut stream).expect("no challenge");
        Raw { stream, transcript: Transcript { hello, challenge } }
    }

    fn challenge(&self) -> Hello {
        Hello::decode(&self.transcript.challenge).unwrap()
    }
}

fn one_request(greeter: &mut Greeter) -> Request {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(request) = greeter.poll().pop() {
            return request;
        }
        nap();
    }
    panic!("no request")
}

#[test]
fn good_peers_meet_and_nothing_behind_the_handshake_is_taken() {
    for (at, key, purpose, token) in [
        (LOOPBACK, None, Purpose::Passive, 0),
        (LOOPBACK, secret(1), Purpose::Passive, 0),
        (LOOPBACK, secret(1), Purpose::Endpoint, 0x0123_4567_89ab_cdef),
        (SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0), secret(2), Purpose::Endpoint, u64::MAX),
    ] {
        let Ok(mut greeter) = Greeter::listen(at, purpose, token, key.clone()) else {
            assert!(at.is_ipv6(), "{at}");
            continue; // a host without IPv6
        };
        let to = Address::of(greeter.local(), Some(token));
        let mut dial = Dial::new(&to, Some(SocketAddr::new(at.ip(), 0)), purpose, token, terms(&[9; 256]), key).unwrap();
        let poller = Poller::new().unwrap();
        greeter.watch(&poller).unwrap();
        let request = request(&mut greeter, &mut dial);
        assert_eq!((request.data(), request.terms()), (&[9; 256][..], &terms(&[9; 256])));
        assert_eq!((request.peer().ip(), greeter.pending()), (at.ip(), 0));
        // The first frame of the accepting side comes right behind its answer.
        let mut theirs = stream(request.accept(terms(b"welcome")).unwrap());
        theirs.write_all(b"frame").unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let (socket, got) = accepted(&mut dial);
        assert_eq!(got, terms(b"welcome"));
        assert!(dial.fd().is_none() && dial.advance().is_err());
        let mut ours = stream(socket);
        let mut buf = [0; 5];
        ours.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"frame");
        ours.write_all(b"ready").unwrap();
        // That is no longer the listener's: whoever sleeps on it sleeps on.
        assert!(greeter.poll().is_empty());
        assert!(poller.wait(Some(5_000_000)) == Woken::Timeout);
        theirs.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"ready");
    }
}

#[test]
fn a_dialer_that_runs_ahead_loses_nothing() {
    let mut greeter = greeter(None);
    let mut raw = TcpStream::connect(greeter.local()).unwrap();
    let transcript = Transcript { hello: hello(false, 1).encode(), challenge: [0; HELLO_LEN] };
    let all = [&transcript.hello[..], &intro(&transcript, None, &terms(b"x").encode().unwrap()), b"frame"].concat();
    raw.write_all(&all).unwrap();
    let request = one_request(&mut greeter);
    assert_eq!(request.data(), b"x");
    let mut theirs = stream(request.accept(terms(b"")).unwrap());
    let mut buf = [0; 5];
    theirs.read_exact(&mut buf).unwrap();
    assert_eq!(&buf, b"frame");
}

#[test]
fn a_request_is_turned_down_with_data_or_by_forgetting_it() {
    for key in [None, secret(3)] {
        let mut greeter = greeter(key.clone());
        let mut one = dial(greeter.local(), key.clone());
        Box::new(request(&mut greeter, &mut one)).reject(b"not today").unwrap();
        assert!(matches!(outcome(None, &mut one), Ok(Dialed::Rejected(data)) if data == b"not today"));
        let mut two = dial(greeter.local(), key.clone());
        drop(request(&mut greeter, &mut two));
        assert!(matches!(outcome(None, &mut two), Ok(Dialed::Rejected(data)) if data.is_empty()));
        let mut three = dial(greeter.local(), key);
        let request = request(&mut greeter, &mut three);
        assert_eq!(Box::new(request).reject(&[0; 257]).unwrap_err().errno, errno::EINVAL);
    }
}

#[test]
fn keys_must_be_there_on_both_sides_and_be_the_same() {
    for (ours, theirs, words) in
        [(secret(1), secret(2), "another key"), (secret(1), None, "insists on a key"), (None, secret(1), "insists on a key")]
    {
        let mut greeter = greeter(theirs);
        let mut dial = dial(greeter.local(), ours);
        let e = failure(Some(&mut greeter), &mut dial);
        assert!(
            e.errno == errno::EACCES && e.code == Code::None && e.words.contains(words) && e.words.contains(&greeter.local().to_string()),
            "{e}"
        );
        assert_eq!(greeter.pending(), 0);
    }
}

#[test]
fn an_introduction_is_good_for_one_connection() {
    let key = secret(4).unwrap();
    let mut greeter = greeter(Some(key.clone()));
    let body = terms(b"once").encode().unwrap();
    let mut first = Raw::greet(&mut greeter, hello(true, 5));
    let good = intro(&first.transcript, Some(&key), &body);
    first.stream.write_all(&good).unwrap();
    drop(one_request(&mut greeter));
    // The same nonce of the dialer, and the same introduction: the listener's nonce is another one.
    let mut again = Raw::greet(&mut greeter, hello(true, 5));
    assert_ne!(again.challenge().nonce, first.challenge().nonce);
    again.stream.write_all(&good).unwrap();
    let head = Head::decode(&answer::<HEAD_LEN>(&mut greeter, &mut again.stream).unwrap()).unwrap();
    assert_eq!((head.status, head.body, head.proof), (Status::KeyWrong, 0, [0; 32]));
    assert!(answer::<1>(&mut greeter, &mut again.stream).is_none());
    // Nor does a changed body pass.
    let mut third = Raw::greet(&mut greeter, hello(true, 6));
    let mut bent = intro(&third.transcript, Some(&key), &body);
    *bent.last_mut().unwrap() ^= 1;
    third.stream.write_all(&bent).unwrap();
    assert_eq!(Head::decode(&answer(&mut greeter, &mut third.stream).unwrap()).unwrap().status, Status::KeyWrong);
}

#[test]
fn the_body_of_an_unproven_introduction_is_not_looked_at() {
    let mut greeter = greeter(secret(1));
    let mut raw = Raw::greet(&mut greeter, hello(true, 1));
    raw.stream.write_all(&intro(&raw.transcript, secret(2).as_ref(), &[0xff; 1024])).unwrap();
    assert_eq!(Head::decode(&answer(&mut greeter, &mut raw.stream).unwrap()).unwrap().status, Status::KeyWrong);
}

#[test]
fn without_a_common_version_the_listener_says_which_it_has() {
    let mut greeter = greeter(None);
    let mut raw = Raw::greet(&mut greeter, Hello { lowest: 3, highest: 9, ..hello(false, 1) });
    assert_eq!(raw.transcript.challenge[8..12], [1, 0, 2, 0]);
    assert_eq!(raw.challenge().status, Status::Version);
    assert!(answer::<1>(&mut greeter, &mut raw.stream).is_none());
}

/// A listener made by hand, which answers a HELLO with what `reply` makes of it.
fn listener(reply: impl FnOnce([u8; HELLO_LEN], &mut TcpStream) + Send + 'static) -> (SocketAddr, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let at = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; HELLO_LEN];
        stream.read_exact(&mut hello).unwrap();
        reply(hello, &mut stream);
        // Until the dialer hangs up, so that nothing is lost.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    (at, thread)
}

#[test]
fn a_dialer_believes_no_listener_that_lies() {
    type Reply = fn([u8; HELLO_LEN], &mut TcpStream);
    let cases: [(&str, Option<Secret>, i32, Reply); 9] = [
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
            let head = Head { body: body.len(), status: Status::Good, token: 0, proof: [0; 32] };
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
    // Bound, so that nobody else gets the port, and deaf.
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
    let mut greeter = greeter(None);
    let to = format!("tcp://localhost:{}", greeter.local().port()).parse().unwrap();
    let mut dial = Dial::new(&to, None, Purpose::Passive, 0, terms(b""), None).unwrap();
    request(&mut greeter, &mut dial).accept(terms(b"")).unwrap();
    accepted(&mut dial);
}

#[test]
fn another_door_stays_shut() {
    let mut greeter = Greeter::listen(LOOPBACK, Purpose::Endpoint, 77, None).unwrap();
    let to = Address::of(greeter.local(), None);
    for (purpose, token) in [(Purpose::Passive, 0), (Purpose::Passive, 77), (Purpose::Endpoint, 0), (Purpose::Endpoint, 78)] {
        let mut dial = Dial::new(&to, None, purpose, token, terms(b""), None).unwrap();
        let e = failure(Some(&mut greeter), &mut dial);
        assert_eq!((e.errno, e.code), (errno::ECONNREFUSED, Code::None), "{e}");
    }
}

#[test]
fn what_does_not_fit_closes_its_connection_and_no_other() {
    let mut greeter = greeter(None);
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
        let mut raw = Raw::greet(&mut greeter, hello(false, 1));
        raw.stream.write_all(&bytes).unwrap();
        assert!(answer::<1>(&mut greeter, &mut raw.stream).is_none());
    }
    for bytes in [&[0u8; HELLO_LEN][..], &[0xff; 4096], b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: nobody in particular\r\n\r\n"] {
        let mut raw = TcpStream::connect(greeter.local()).unwrap();
        raw.write_all(bytes).unwrap();
        assert!(answer::<1>(&mut greeter, &mut raw).is_none());
    }
    assert_eq!(greeter.pending(), 0);
    let mut good = dial(greeter.local(), None);
    request(&mut greeter, &mut good).accept(terms(b"")).unwrap();
    accepted(&mut good);
}

#[test]
fn a_peer_that_says_one_byte_at_a_time_is_understood() {
    let key = secret(6);
    let mut greeter = greeter(key.clone());
    let mut raw = TcpStream::connect(greeter.local()).unwrap();
    raw.set_nodelay(true).unwrap();
    let mut transcript = Transcript { hello: hello(true, 1).encode(), challenge: [0; HELLO_LEN] };
    for byte in transcript.hello {
        raw.write_all(&[byte]).unwrap();
        assert!(greeter.poll().is_empty());
    }
    transcript.challenge = answer(&mut greeter, &mut raw).unwrap();
    let intro = intro(&transcript, key.as_ref(), &terms(b"slowly").encode().unwrap());
    let (last, most) = intro.split_last().unwrap();
    for byte in most {
        raw.write_all(&[*byte]).unwrap();
        nap();
        assert!(greeter.poll().is_empty());
    }
    raw.write_all(&[*last]).unwrap();
    assert_eq!(one_request(&mut greeter).data(), b"slowly");
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Bytes of memory that this process has in use.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Room for thousands of sockets, as far as this user may have it.
fn more_descriptors() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |n| n as usize)
}

/// Serves a dialer that comes behind everybody who is there already; how long that took.
fn serve_one(greeter: &mut Greeter, most: usize) -> Duration {
    let start = Instant::now();
    let mut good = dial(greeter.local(), None);
    loop {
        assert!(start.elapsed() < LIMIT, "not served");
        let requests = greeter.poll();
        assert!(greeter.pending() <= most);
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
    let mut greeter = greeter(None);
    // Each says half of a greeting and no more.
    let half: Vec<TcpStream> = (0..200)
        .map(|i| {
            let mut s = TcpStream::connect(greeter.local()).unwrap();
            s.write_all(&hello(false, i as u8).encode()[..32]).unwrap();
            assert!(greeter.poll().is_empty());
            s
        })
        .collect();
    assert_eq!(greeter.pending(), 64);
    let took = serve_one(&mut greeter, 64);
    assert!(took < Duration::from_secs(2), "{took:?}");
    // Who had to make room was told.
    let told = half.iter().filter(|s| {
        s.set_nonblocking(true).unwrap();
        let mut got = [0; HELLO_LEN];
        matches!((&mut &**s).read(&mut got), Ok(HELLO_LEN)) && Hello::decode(&got).unwrap().status == Status::Busy
    });
    assert!(told.count() >= 130);
}

/// Alone in its process's sums of descriptors and memory it is not, so the bounds have some slack.
#[test]
fn two_thousand_silent_connections_cost_little() {
    let room = more_descriptors();
    let count = 2000.min(room.saturating_sub(512));
    assert!(count > 300, "no descriptors to try it with: {room}");
    let mut greeter = greeter(None);
    assert!(greeter.poll().is_empty());
    let before = (descriptors(), resident());
    let at = greeter.local();
    let silent: Vec<TcpStream> = (0..count).map(|_| TcpStream::connect(at).unwrap()).collect();
    assert!(greeter.poll().is_empty());
    let took = serve_one(&mut greeter, 64);
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
    let mut greeter = greeter(None);
    let poller = Poller::new().unwrap();
    greeter.watch(&poller).unwrap();
    let silent: Vec<TcpStream> = (0..80).map(|_| TcpStream::connect(greeter.local()).unwrap()).collect();
    assert!(poller.wait(Some(1_000_000_000)) == Woken::Ready);
    let start = Instant::now();
    while greeter.pending() < 64 {
        assert!(greeter.poll().is_empty() && start.elapsed() < LIMIT);
    }
    greeter.watch(&poller).unwrap();
    // Sixteen wait in the kernel's queue, and there is nothing to do about them yet.
    let woken = poller.wait(Some(30_000_000));
    assert!(woken == Woken::Timeout || start.elapsed() > Duration::from_millis(90));
    assert!(poller.wait(Some(1_000_000_000)) == Woken::Ready && start.elapsed() > Duration::from_millis(90));
    let mut served = 0;
    while served < 16 && start.elapsed() < LIMIT {
        assert!(greeter.poll().is_empty());
        greeter.watch(&poller).unwrap();
        served = silent
            .iter()
            .filter(|s| {
                s.set_nonblocking(true).unwrap();
                s.peek(&mut [0; 1]).is_ok()
            })
            .count();
        nap();
    }
    assert_eq!((served, greeter.pending()), (16, 64));
}

#[test]
fn a_passive_endpoint_tells_its_queue() {
    let open = |info: &Info| Listener::open(info).map(|listener| PassiveEndpoint::new(Box::new(listener), 42));
    let info = Info { auth_key: secret(8), ..Info::default() };
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
    // The port is taken, and an endpoint's own address is nobody's to listen on.
    let taken = Info { src_addr: Some(pep.address().into()), ..Info::default() };
    let e = open(&taken).err().expect("two listeners on one port");
    assert!(e.errno == errno::EADDRINUSE && e.words.contains(&address.port().to_string()), "{e}");
    for bad in ["shm://x", "tcp://127.0.0.1:1/0123456789abcdef", "tcp://192.0.2.1:0"] {
        let info = Info { src_addr: Some(bad.into()), ..Info::default() };
        assert!(open(&info).is_err(), "{bad}");
    }
}
