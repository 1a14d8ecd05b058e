// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Both sides of a handshake, and a hand-made dialer.

use gdrfab::error::{Error, Result};
use gdrfab::prov::info::Secret;
use gdrfab::prov::tcp::secure::auth::{Key, Keys, Transcript};
use gdrfab::prov::tcp::secure::known::KnownHosts;
use gdrfab::prov::tcp::secure::noise::public_of;
use gdrfab::prov::tcp::wire::hello::{HELLO_LEN, Head, Hello, Status};
use gdrfab::prov::tcp::{Address, Dial, Dialed, HandshakeAcceptor, Link, Purpose, Request, Terms};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
pub const LIMIT: Duration = Duration::from_secs(20);

pub fn secret(byte: u8) -> Option<Key> {
    Some(Key::of(Keys::Shared(Secret::new(&[byte; 32]).unwrap()), true).unwrap())
}

/// A key that decides who may connect, and does not seal the connection.
pub fn unsealed(byte: u8) -> Option<Key> {
    Some(Key::of(Keys::Shared(Secret::new(&[byte; 32]).unwrap()), false).unwrap())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The keys of a host whose private key has `own` in each byte, and which trusts these peers.
pub fn known(own: u8, peers: &[(&str, u8)]) -> KnownHosts {
    let line = |(names, byte): &(&str, u8)| format!("peer {names} {}\n", hex(&public_of(&[*byte; 32])));
    let text = format!("private {}\n{}", hex(&[own; 32]), peers.iter().map(line).collect::<String>());
    KnownHosts::parse(text.as_bytes()).unwrap()
}

pub fn host(own: u8, peers: &[(&str, u8)]) -> Option<Key> {
    Some(Key::of(Keys::Hosts(known(own, peers)), true).unwrap())
}

pub fn acceptor(key: Option<Key>) -> HandshakeAcceptor {
    HandshakeAcceptor::listen(LOOPBACK, Purpose::Passive, 0, key).unwrap()
}

pub fn terms(data: &[u8]) -> Terms {
    Terms { window: 7, budget: 1 << 20, address: "tcp://127.0.0.1:1".into(), data: data.to_vec(), ..Terms::default() }
}

pub fn dial(at: SocketAddr, key: Option<Key>) -> Dial {
    Dial::new(&Address::of(at, None), None, Purpose::Passive, 0, terms(b"hello"), key).unwrap()
}

pub fn nap() {
    std::thread::sleep(Duration::from_micros(200));
}

/// Drives both sides until the listener has a request.
pub fn request(acceptor: &mut HandshakeAcceptor, dial: &mut Dial) -> Request {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(request) = acceptor.poll().pop() {
            return request;
        }
        assert!(matches!(dial.advance(), Ok(Dialed::Waiting)));
        nap();
    }
    panic!("no request")
}

/// Drives the dialer, and the listener if there is one, until the dial is over. The listener must not get a request.
pub fn outcome(mut acceptor: Option<&mut HandshakeAcceptor>, dial: &mut Dial) -> Result<Dialed> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        match dial.advance() {
            Ok(Dialed::Waiting) => {}
            over => return over,
        }
        if let Some(acceptor) = acceptor.as_mut() {
            assert!(acceptor.poll().is_empty(), "announced");
        }
        nap();
    }
    panic!("the dial does not end")
}

pub fn failure(acceptor: Option<&mut HandshakeAcceptor>, dial: &mut Dial) -> Error {
    match outcome(acceptor, dial) {
        Err(e) => e,
        Ok(Dialed::Accepted { .. }) => panic!("accepted"),
        Ok(_) => panic!("rejected"),
    }
}

pub fn accepted(dial: &mut Dial) -> (Link, Terms) {
    match outcome(None, dial) {
        Ok(Dialed::Accepted { link, terms }) => (link, terms),
        Ok(_) => panic!("rejected"),
        Err(e) => panic!("{e}"),
    }
}

pub fn stream(link: Link) -> TcpStream {
    let stream = TcpStream::from(link.socket);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// A hand-made dialer.
pub struct Raw {
    pub stream: TcpStream,
    pub transcript: Transcript,
}

pub fn hello(keyed: bool, nonce: u8) -> Hello {
    let version = if keyed { 3 } else { 1 };
    Hello {
        lowest: version,
        highest: version,
        keyed,
        sealed: keyed,
        aes: keyed,
        purpose: 0,
        status: Status::Good,
        nonce: [nonce; 32],
        id: None,
    }
}

/// The hello of a dialer with this key.
pub fn hello_of(key: &Key, nonce: u8) -> Hello {
    Hello { lowest: key.since(), highest: key.since(), id: key.id(), ..hello(true, nonce) }
}

/// An INTRO as bytes.
pub fn intro(transcript: &Transcript, key: Option<(&Key, &TcpStream)>, body: &[u8]) -> Vec<u8> {
    let head = Head { body: body.len(), status: Status::Good, token: 0, ephemeral: [0; 32] };
    let Some((key, stream)) = key else { return [&head.encode(), body].concat() };
    intro_between(transcript, key, stream.local_addr().unwrap(), stream.peer_addr().unwrap(), body)
}

/// An introduction under a key, of a dialer that believes both sides to be at these addresses.
pub fn intro_between(transcript: &Transcript, key: &Key, own: SocketAddr, peer: SocketAddr, body: &[u8]) -> Vec<u8> {
    let mut known = *transcript;
    // An unreadable hello selects neither cipher nor key.
    if Hello::decode(&known.challenge).is_err() {
        let id = key.id().map(|_| known.challenge[48..].try_into().unwrap());
        let first = Hello { id, ..hello_of(key, 0) }.encode();
        known.challenge = [0; HELLO_LEN];
        known.challenge[..16].copy_from_slice(&first[..16]);
        known.challenge[48..].copy_from_slice(&first[48..]);
    }
    let message = known.noise(key, own, peer, true).unwrap().write(&[&[0; 16], body].concat()).unwrap();
    let head = Head { body: message.len() - 32, status: Status::Good, token: 0, ephemeral: message[..32].try_into().unwrap() };
    [&head.encode(), &message[32..]].concat()
}

/// Drives the listener until the peer's socket has `N` bytes; `None`: it closes first.
pub fn answer<const N: usize>(acceptor: &mut HandshakeAcceptor, stream: &mut TcpStream) -> Option<[u8; N]> {
    stream.set_nonblocking(true).unwrap();
    let (start, mut got, mut have) = (Instant::now(), [0; N], 0);
    while have < N {
        assert!(start.elapsed() < LIMIT, "no answer");
        assert!(acceptor.poll().is_empty(), "announced");
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
    /// Sends `hello` and reads the challenge.
    pub fn greet(acceptor: &mut HandshakeAcceptor, hello: Hello) -> Raw {
        let mut stream = TcpStream::connect(acceptor.local()).unwrap();
        let hello = hello.encode();
        stream.write_all(&hello).unwrap();
        let challenge = answer::<HELLO_LEN>(acceptor, &mut stream).expect("no challenge");
        Raw { stream, transcript: Transcript { hello, challenge } }
    }

    pub fn challenge(&self) -> Hello {
        Hello::decode(&self.transcript.challenge).unwrap()
    }
}

pub fn one_request(acceptor: &mut HandshakeAcceptor) -> Request {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(request) = acceptor.poll().pop() {
            return request;
        }
        nap();
    }
    panic!("no request")
}
