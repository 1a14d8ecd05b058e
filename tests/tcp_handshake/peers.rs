// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Both sides of a handshake, and a dialer made by hand.

use gdrfab::error::{Error, Result};
use gdrfab::prov::info::Secret;
use gdrfab::prov::tcp::auth::{Side, Transcript};
use gdrfab::prov::tcp::hello::{HELLO_LEN, Head, Hello, Status};
use gdrfab::prov::tcp::{Address, Dial, Dialed, Greeter, Purpose, Request, Terms};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

pub const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
pub const LIMIT: Duration = Duration::from_secs(20);

pub fn secret(byte: u8) -> Option<Secret> {
    Some(Secret::new(&[byte; 32]).unwrap())
}

pub fn greeter(key: Option<Secret>) -> Greeter {
    Greeter::listen(LOOPBACK, Purpose::Passive, 0, key).unwrap()
}

pub fn terms(data: &[u8]) -> Terms {
    Terms { window: 7, budget: 1 << 20, address: "tcp://127.0.0.1:1".into(), data: data.to_vec(), ..Terms::default() }
}

pub fn dial(at: SocketAddr, key: Option<Secret>) -> Dial {
    Dial::new(&Address::of(at, None), None, Purpose::Passive, 0, terms(b"hello"), key).unwrap()
}

pub fn nap() {
    std::thread::sleep(Duration::from_micros(200));
}

/// Drives both until the listener has a request.
pub fn request(greeter: &mut Greeter, dial: &mut Dial) -> Request {
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
pub fn outcome(mut greeter: Option<&mut Greeter>, dial: &mut Dial) -> Result<Dialed> {
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

pub fn failure(greeter: Option<&mut Greeter>, dial: &mut Dial) -> Error {
    match outcome(greeter, dial) {
        Err(e) => e,
        Ok(Dialed::Accepted { .. }) => panic!("accepted"),
        Ok(_) => panic!("rejected"),
    }
}

pub fn accepted(dial: &mut Dial) -> (OwnedFd, Terms) {
    match outcome(None, dial) {
        Ok(Dialed::Accepted { socket, terms }) => (socket, terms),
        Ok(_) => panic!("rejected"),
        Err(e) => panic!("{e}"),
    }
}

pub fn stream(fd: OwnedFd) -> TcpStream {
    let stream = TcpStream::from(fd);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// A dialer made by hand.
pub struct Raw {
    pub stream: TcpStream,
    pub transcript: Transcript,
}

pub fn hello(keyed: bool, nonce: u8) -> Hello {
    Hello { lowest: 1, highest: 1, keyed, purpose: 0, status: Status::Good, nonce: [nonce; 32] }
}

/// An introduction as bytes.
pub fn intro(transcript: &Transcript, key: Option<&Secret>, body: &[u8]) -> Vec<u8> {
    let mut head = Head { body: body.len(), status: Status::Good, token: 0, proof: [0; 32] };
    if let Some(key) = key {
        head.proof = transcript.proof(key, Side::Dialer, &head.proven(), body).unwrap();
    }
    [&head.encode(), body].concat()
}

/// Drives the listener until the peer's socket has `N` bytes; `None`: it closes first.
pub fn answer<const N: usize>(greeter: &mut Greeter, stream: &mut TcpStream) -> Option<[u8; N]> {
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
    pub fn greet(greeter: &mut Greeter, hello: Hello) -> Raw {
        let mut stream = TcpStream::connect(greeter.local()).unwrap();
        let hello = hello.encode();
        stream.write_all(&hello).unwrap();
        let challenge = answer::<HELLO_LEN>(greeter, &mut stream).expect("no challenge");
        Raw { stream, transcript: Transcript { hello, challenge } }
    }

    pub fn challenge(&self) -> Hello {
        Hello::decode(&self.transcript.challenge).unwrap()
    }
}

pub fn one_request(greeter: &mut Greeter) -> Request {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(request) = greeter.poll().pop() {
            return request;
        }
        nap();
    }
    panic!("no request")
}
