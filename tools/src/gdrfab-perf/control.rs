// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connecting by exchanged addresses. The two sides send each other the plan and the addresses of their endpoints over a TCP
//! socket of their own, which stays open so that the end of a process is noticed. Nothing that arrives on this socket is
//! trusted before it was checked.

use crate::args::Options;
use crate::bounds::Bounds;
use crate::cli;
use crate::conn::Side;
use crate::provider::{Choice, SHM, leaves_from, place};
use crate::socket::{Control, failed};
use crate::stats::Clock;
use crate::wire::{self, Answer, Kinds, Plan};
use gdrfab::error::{Error, Result, errno};
use gdrfab::sys::time::ticks;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The port of perftest, so that its users find the same port open.
const DEFAULT_PORT: u16 = 18515;
/// "gdrfabc" and the version of the format; the length of the rest and the rest follow.
const MAGIC: [u8; 8] = *b"gdrfabc\x01";
/// The longest rest that is accepted: the addresses of all endpoints, and more.
const FRAME_MAX: usize = 32 << 10;
const ADDRESS_MAX: usize = 256;
/// The longest name of a provider.
const NAME_MAX: usize = 32;
/// The first word of the rest in the server's answer.
const WELCOME: u8 = 1;
const REFUSED: u8 = 0;

/// The number of bytes before the rest.
const HEAD: usize = 12;

fn foreign() -> Error {
    Error::fixed(errno::EPROTO, "who speaks there is not gdrfab-perf, or of another version")
}

/// The length of the rest that follows these bytes.
fn rest_of(head: &[u8; HEAD]) -> Result<usize> {
    let (magic, len) = head.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(foreign());
    }
    let len = u32::from_le_bytes(len.try_into().unwrap_or([0xff; 4])) as usize;
    if len > FRAME_MAX {
        return Err(Error::new(errno::EPROTO, format!("a frame of {len} bytes, where {FRAME_MAX} are the most")));
    }
    Ok(len)
}

/// A socket with a time limit for a whole exchange, however slowly the bytes arrive.
struct Talk {
    socket: TcpStream,
    until: Instant,
}

impl Talk {
    fn new(socket: TcpStream, limit: Duration) -> Talk {
        Talk { socket, until: Instant::now() + limit }
    }

    fn left(&self) -> std::io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> std::io::Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            self.socket.set_read_timeout(Some(self.left()?))?;
            match self.socket.read(&mut bytes[at..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => at += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Vec<u8>> {
        let of = |e: std::io::Error| failed("the control socket", &e);
        let mut head = [0u8; HEAD];
        self.fill(&mut head).map_err(of)?;
        let mut rest = vec![0; rest_of(&head)?];
        self.fill(&mut rest).map_err(of)?;
        Ok(rest)
    }

    fn send(&mut self, rest: &[u8]) -> Result<()> {
        let frame = [&MAGIC[..], &(rest.len() as u32).to_le_bytes(), rest].concat();
        let put = |t: &mut Talk| {
            t.socket.set_write_timeout(Some(t.left()?))?;
            t.socket.write_all(&frame)
        };
        put(self).map_err(|e| failed("the control socket", &e))
    }
}

/// Takes a piece from the front, if there is one.
fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (piece, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(piece)
}

fn put(out: &mut Vec<u8>, piece: &[u8]) {
    out.extend_from_slice(&(piece.len() as u16).to_le_bytes());
    out.extend_from_slice(piece);
}

fn get<'a>(bytes: &mut &'a [u8], most: usize) -> Option<&'a [u8]> {
    let len = take(bytes, 2)?;
    let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
    if len > most { None } else { take(bytes, len) }
}

/// Parses exactly as many addresses as there are endpoints.
fn addresses(mut bytes: &[u8], count: usize) -> Option<Vec<String>> {
    let list: Option<Vec<String>> =
        (0..count).map(|_| Some(std::str::from_utf8(get(&mut bytes, ADDRESS_MAX)?).ok()?.to_string())).collect();
    list.filter(|_| bytes.is_empty())
}

/// A client's first message: the provider, its plan, and the addresses of its endpoints.
fn hello(bytes: &[u8]) -> std::result::Result<(&str, Plan, wire::PeerMemory, Vec<String>), &'static str> {
    let mut rest = bytes;
    let provider = get(&mut rest, NAME_MAX).and_then(|name| std::str::from_utf8(name).ok()).ok_or("an unknown plan")?;
    let (plan, place) = Plan::decode(get(&mut rest, 256).ok_or("an unknown plan")?)?;
    let list = addresses(rest, plan.endpoints).ok_or("addresses that make no sense")?;
    Ok((provider, plan, place, list))
}

/// This side's endpoints, as many as the plan has, and their addresses.
fn prepare(side: &mut Side, plan: &Plan) -> Result<Vec<u8>> {
    for _ in 1..plan.endpoints {
        side.add(None, plan)?;
    }
    let mut out = Vec::new();
    for ep in &side.link.eps {
        put(&mut out, ep.address()?.as_bytes());
    }
    Ok(out)
}

/// Connects each endpoint to its counterpart.
fn meet(side: &mut Side, theirs: &[String]) -> Result<()> {
    for (lane, address) in theirs.iter().enumerate() {
        side.reach(lane, address)?;
    }
    if !side.link.traits.rdm {
        theirs.iter().try_for_each(|_| side.connected().map(drop))?;
    }
    side.link.heard = ticks();
    Ok(())
}

impl Side {
    /// Connects to a server by exchanging addresses with it.
    pub fn call(o: &Options, server: &str, plan: &Plan, clock: Clock, cpu: Option<usize>) -> Result<Side> {
        let (host, port) = place(server, false);
        let host = host.ok_or(Error::fixed(errno::EINVAL, "the server's address makes no sense"))?;
        let port = port.and_then(|p| p.parse().ok()).or(o.drive.control_port).or(o.port).unwrap_or(DEFAULT_PORT);
        let mut choice = o.choice.clone();
        choice.provider = match choice.network(Some(server)) {
            Some(network) => Some(network.to_string()),
            None if choice.rdm || choice.provider.is_some() => choice.provider.take(),
            None if !leaves_from(host).is_some_and(|ip| ip.is_loopback()) => {
                return Err(Error::fixed(errno::EINVAL, "--connect addresses: for another host name the provider, -p verbs or -p tcp"));
            }
            None => Some(SHM.into()),
        };
        let info = choice.discover_own(leaves_from(host))?;
        let provider = info.prov_name.clone().unwrap_or_default();
        let mut side = Side::open(info, plan, o.memory, clock, cpu, plan.patience_ms())?;
        side.address = format!("{host}:{port}, by addresses over {provider}");
        let mut text = Vec::new();
        put(&mut text, provider.as_bytes());
        put(&mut text, &plan.encode(side.place()?));
        text.extend(prepare(&mut side, plan)?);

        let limit = Duration::from_millis(plan.patience_ms());
        let mut talk = Talk::new(reach(host, port, limit)?, limit);
        talk.send(&text)?;
        let answer = talk.receive()?;
        let wrong = || Error::fixed(errno::EPROTO, "the server's answer makes no sense");
        let (kind, mut rest) = answer.split_first().ok_or_else(wrong)?;
        if *kind == REFUSED {
            return Err(Error::new(errno::ECONNREFUSED, format!("the server turned us away: {}", String::from_utf8_lossy(rest))));
        }
        let told = get(&mut rest, 256).and_then(Answer::decode).filter(|_| *kind == WELCOME).ok_or_else(wrong)?;
        side.hear(&told);
        meet(&mut side, &addresses(rest, plan.endpoints).ok_or_else(wrong)?)?;
        side.link.control = Some(Control::new(talk.socket, clock)?);
        if plan.rdm {
            // The first message makes the connection.
            side.link.post_mail(Kinds::Tick, &[])?;
        }
        Ok(side)
    }
}

fn reach(host: &str, port: u16, limit: Duration) -> Result<TcpStream> {
    let what = format!("connecting to {host}:{port}");
    let mut last = Error::new(errno::EADDRNOTAVAIL, format!("{what}: the name has no address"));
    for at in (host, port).to_socket_addrs().map_err(|e| failed(&what, &e))? {
        match TcpStream::connect_timeout(&at, limit) {
            Ok(socket) => return Ok(socket),
            Err(e) => last = failed(&what, &e),
        }
    }
    Err(last)
}

/// The listener of a server for clients that exchange addresses.
pub struct Exchange {
    listener: TcpListener,
    choice: Choice,
    bounds: Bounds,
    /// A client that has connected and not sent its whole message yet.
    callers: RefCell<Vec<Caller>>,
}

/// The most clients that are read from at once. Further ones wait in the listener's backlog until one has finished or its
/// time is over.
const CALLERS: usize = 64;

struct Caller {
    socket: TcpStream,
    said: Vec<u8>,
    until: Instant,
}

impl Caller {
    /// The client's message, once it is complete.
    fn listen(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            let want = match self.said.first_chunk::<HEAD>() {
                Some(head) => HEAD + rest_of(head)?,
                None if self.said.iter().zip(MAGIC).all(|(said, due)| *said == due) => HEAD,
                None => return Err(foreign()),
            };
            if self.said.len() == want && want > HEAD {
                return Ok(Some(self.said.split_off(HEAD)));
            }
            let mut piece = [0; 4096];
            let room = (want - self.said.len()).clamp(1, piece.len());
            match self.socket.read(&mut piece[..room]) {
                Ok(0) => return Err(failed("the control socket", &ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.said.extend_from_slice(&piece[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < self.until => return Ok(None),
                Err(e) => return Err(failed("the control socket", &e)),
            }
        }
    }
}

impl Exchange {
    pub fn open(o: &Options) -> Result<Exchange> {
        if o.choice.rdm {
            // A message that no client can send is refused now.
            o.choice.discover_own(None)?;
        }
        let (host, port) = o.name.as_deref().map_or((None, None), |name| place(name, true));
        let port = o.drive.control_port.or(o.port).or(port.and_then(|p| p.parse().ok())).unwrap_or(DEFAULT_PORT);
        let what = format!("listening on port {port} of {}", host.unwrap_or("this host"));
        let listener = match host {
            Some(host) => TcpListener::bind((host, port)),
            None => TcpListener::bind((Ipv4Addr::LOCALHOST, port)),
        };
        let listener = listener.and_then(|l| l.set_nonblocking(true).map(|()| l)).map_err(|e| failed(&what, &e))?;
        Ok(Exchange { listener, choice: o.choice.clone(), bounds: o.bounds.clone(), callers: RefCell::default() })
    }

    /// The address at which a client of this host reaches the server.
    pub fn address(&self) -> String {
        match self.listener.local_addr() {
            Ok(at) if at.ip().is_unspecified() => format!("127.0.0.1:{}", at.port()),
            Ok(at) => at.to_string(),
            Err(_) => String::new(),
        }
    }

    /// The next client whose message is complete. Clients that send nothing, or nonsense, do not delay it.
    fn next(&self) -> Result<(TcpStream, Result<Vec<u8>>)> {
        let callers = &mut *self.callers.borrow_mut();
        loop {
            while callers.len() < CALLERS {
                match self.listener.accept().and_then(|(socket, _)| socket.set_nonblocking(true).map(|()| socket)) {
                    Ok(socket) => {
                        let until = Instant::now() + Duration::from_millis(self.bounds.meeting_ms);
                        callers.push(Caller { socket, said: Vec::new(), until });
                    }
                    Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    // There may be no descriptor left, for example; the clients that are connected may still do.
                    Err(_) if !callers.is_empty() => break,
                    Err(e) => return Err(failed("waiting for a client", &e)),
                }
            }
            for at in 0..callers.len() {
                let Some(heard) = callers.get_mut(at).and_then(|c| c.listen().transpose()) else { continue };
                let Caller { socket, .. } = callers.remove(at);
                socket.set_nonblocking(false).map_err(|e| failed("the control socket", &e))?;
                return Ok((socket, heard));
            }
            let full = callers.len() == CALLERS;
            let ends = callers.iter().map(|c| c.until.saturating_duration_since(Instant::now()).as_millis() as i64 + 1).min();
            let fds = callers.iter().map(|c| c.socket.as_fd()).chain((!full).then(|| self.listener.as_fd()));
            let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            let limit = ends.map(|ms| Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 });
            let _ = poll(&mut fds, limit.as_ref());
        }
    }

    /// Waits for a client whose plan can be served, prepares for the plan, and connects. Clients that fail before that are
    /// turned away.
    pub fn accept(&self, clock: Clock, cpu: Option<usize>) -> Result<(Side, Plan)> {
        loop {
            let (socket, heard) = self.next()?;
            let mut talk = Talk::new(socket, Duration::from_millis(self.bounds.meeting_ms));
            let words = match heard.map_err(|e| e.to_string()).and_then(|said| self.meet(&mut talk, &said, clock, cpu)) {
                Ok((mut side, plan)) => {
                    side.link.control = Some(Control::new(talk.socket, clock)?);
                    return Ok((side, plan));
                }
                Err(words) => words,
            };
            cli::complain(&format!("gdrfab-perf: a client was turned away: {words}"));
            refuse(&mut talk, &words);
        }
    }

    /// Words for a client that cannot be served.
    fn meet(&self, talk: &mut Talk, said: &[u8], clock: Clock, cpu: Option<usize>) -> std::result::Result<(Side, Plan), String> {
        let (provider, plan, peer, theirs) = hello(said)?;
        if let Some(ours) = self.choice.network(None).or(self.choice.provider.as_deref()).filter(|ours| *ours != provider) {
            return Err(format!("this server is for {ours}, not {provider:?}"));
        }
        let plan = self.bounds.admit(plan)?;
        let of = |e: Error| e.to_string();
        let (mut side, ours) = self.get_ready(talk, provider, &plan, clock, cpu).map_err(of)?;
        side.link.peer = peer;
        // Allocating the memory may have taken long.
        talk.until = Instant::now() + Duration::from_millis(self.bounds.meeting_ms(&plan));
        talk.send(&ours).and_then(|()| meet(&mut side, &theirs)).map_err(of)?;
        Ok((side, plan))
    }

    fn get_ready(&self, talk: &Talk, provider: &str, plan: &Plan, clock: Clock, cpu: Option<usize>) -> Result<(Side, Vec<u8>)> {
        let here = talk.socket.local_addr().ok().map(|at| at.ip());
        let choice = Choice { provider: Some(provider.into()), rdm: plan.rdm, ..self.choice.clone() };
        let mut side = Side::open(choice.discover_own(here)?, plan, plan.memory, clock, cpu, self.bounds.meeting_ms(plan))?;
        let mut text = vec![WELCOME];
        put(&mut text, &side.answer(0)?);
        text.extend(prepare(&mut side, plan)?);
        Ok((side, text))
    }
}

/// Sends the reason for a refusal, to a client that may be gone or may not read it.
fn refuse(talk: &mut Talk, words: &str) {
    talk.until = Instant::now() + Duration::from_millis(100);
    let _ = talk.send(&[&[REFUSED], wire::clip(words, ADDRESS_MAX)].concat());
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_server_without_an_address_listens_on_the_loopback() {
        for line in ["write-bw --connect addresses --control-port 0", "write-bw --connect addresses --control-port 0 -p verbs"] {
            let Ok(crate::args::Parsed::Run(o)) = crate::args::parse(cli::Args::new(line.split(' ').map(String::from))) else {
                panic!("{line}");
            };
            assert!(Exchange::open(&o).unwrap().listener.local_addr().unwrap().ip().is_loopback(), "{line}");
        }
    }

    #[test]
    fn lists_of_addresses_are_read_whole_or_not_at_all() {
        let mut bytes = Vec::new();
        for text in ["shm://a", "", "tcp://[::1]:5"] {
            put(&mut bytes, text.as_bytes());
        }
        assert_eq!(addresses(&bytes, 3), Some(vec!["shm://a".into(), String::new(), "tcp://[::1]:5".into()]));
        assert_eq!((addresses(&bytes, 2), addresses(&bytes, 4), addresses(&bytes[..bytes.len() - 1], 3)), (None, None, None));
        let mut long = Vec::new();
        put(&mut long, &[b'a'; ADDRESS_MAX + 1]);
        assert_eq!((addresses(&long, 1), addresses(&[2, 0, 0xff, 0xfe], 1), addresses(&[], 0)), (None, None, Some(vec![])));
        assert!(hello(&[]).is_err() && hello(&[3, 0, b's', b'h', b'm', 1, 0, 9]).is_err());
    }
}
