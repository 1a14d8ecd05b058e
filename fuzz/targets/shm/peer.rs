// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The peer that the fuzzer plays. It introduces itself, correctly or not. It writes valid, nearly valid and invalid messages, words, slots
//! and regions into memory that both sides map. It hands over files and changes them. It reads the library's messages and answers some. It
//! keeps to the format's document, and shares no code with the library.

use super::input::Input;
use super::layout::{self as at, *};
use super::memory::has_secret;
use super::world::{ARENA, FILES, Map, SEALED, memfd, world};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// A region as the peer knows it. It may have been closed meanwhile.
#[derive(Clone, Copy)]
pub struct Known {
    pub key: u64,
    pub base: u64,
    pub len: u64,
}

#[derive(Default)]
pub struct Peer {
    socket: Option<OwnedFd>,
    /// The peer's segment, into which the library sends, and the library's segment, from which it receives; each with its lines.
    pub mine: Option<(Map, usize)>,
    pub theirs: Option<(Map, usize)>,
    table: Option<Map>,
    /// Counters of the ring: lines written, bytes of the out-of-line area written, lines read, and sends read.
    pub tail: u64,
    pub area: u64,
    pub head: u64,
    pub sends: u64,
    /// The last offered message: its slot, and the bytes of its fragments so far.
    pub offered: (u64, u64),
    /// Operations of the library's that wait for a report, as slot words, and the number of bytes of reads.
    pub seen: Vec<(u64, u64)>,
    asked: Vec<u64>,
    /// `regions`: the peer's regions that the library may use; `known`: the library's regions that the peer knows.
    pub regions: Vec<Known>,
    pub known: Vec<Known>,
}

pub fn some<T>(list: &[T], n: usize) -> Option<&T> {
    list.get(n % list.len().max(1))
}

fn send(fd: RawFd, bytes: &[u8], fds: &[RawFd]) {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr() as *mut libc::c_void, iov_len: bytes.len() };
    let mut space = [0u64; 16];
    // SAFETY: all memory that the message points to is live, and the control space has room for eight descriptors.
    unsafe {
        let mut m: libc::msghdr = std::mem::zeroed();
        (m.msg_iov, m.msg_iovlen) = (&raw mut iov, 1);
        if !fds.is_empty() {
            (m.msg_control, m.msg_controllen) = (space.as_mut_ptr().cast(), libc::CMSG_SPACE(4 * fds.len() as u32) as usize);
            let head = libc::CMSG_FIRSTHDR(&raw const m);
            ((*head).cmsg_level, (*head).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            (*head).cmsg_len = libc::CMSG_LEN(4 * fds.len() as u32) as usize;
            std::ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(head).cast::<RawFd>(), fds.len());
        }
        libc::sendmsg(fd, &raw const m, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }
}

fn receive(fd: RawFd) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut buf, mut space) = ([0u8; 1100], [0u64; 16]);
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut fds = Vec::new();
    // SAFETY: all memory that the message points to is live; descriptors that arrive are ours.
    let n = unsafe {
        let mut m: libc::msghdr = std::mem::zeroed();
        (m.msg_iov, m.msg_iovlen) = (&raw mut iov, 1);
        (m.msg_control, m.msg_controllen) = (space.as_mut_ptr().cast(), size_of_val(&space));
        let n = libc::recvmsg(fd, &raw mut m, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC);
        let head = libc::CMSG_FIRSTHDR(&raw const m);
        if n > 0 && !head.is_null() && (*head).cmsg_type == libc::SCM_RIGHTS {
            let count = ((*head).cmsg_len - libc::CMSG_LEN(0) as usize) / 4;
            fds.extend((0..count).map(|i| OwnedFd::from_raw_fd(libc::CMSG_DATA(head).cast::<RawFd>().add(i).read_unaligned())));
        }
        n
    };
    (n > 0).then(|| (buf[..n as usize].to_vec(), fds))
}

fn word_of(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn size_of_file(fd: &OwnedFd) -> usize {
    // SAFETY: `st` is live.
    unsafe {
        let mut st: libc::stat = std::mem::zeroed();
        libc::fstat(fd.as_raw_fd(), &raw mut st);
        st.st_size as usize
    }
}

impl Peer {
    /// Accepts the library's call, if it has made one.
    pub fn accept(&mut self) {
        // SAFETY: a successful call returns a descriptor that belongs to this code alone.
        let fd = unsafe { libc::accept4(world().listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
        if fd >= 0 {
            // SAFETY: `fd` was just returned by accept4() and belongs to this code alone.
            self.socket = Some(unsafe { OwnedFd::from_raw_fd(fd) });
            self.hear();
        }
    }

    /// Connects to the listener of that name.
    pub fn call(&mut self, name: &str) {
        // SAFETY: plain system calls on a descriptor that is ours.
        unsafe {
            let fd = OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0));
            let mut address: libc::sockaddr_un = std::mem::zeroed();
            address.sun_family = libc::AF_UNIX as u16;
            let path = format!("\0gdrfab/{name}");
            address.sun_path.iter_mut().zip(path.bytes()).for_each(|(to, from)| *to = from as libc::c_char);
            let len = size_of::<libc::sa_family_t>() + path.len();
            libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len as u32);
            self.socket = Some(fd);
        }
    }

    /// Sends a hello or an accept. `cma`: the kernel lets the library read the guard, which lies apart or where operations may write.
    pub fn introduce(&mut self, input: &mut Input<'_>, kind: u32, name: &[u8], by_name: bool, cma: bool) {
        let how = input.byte();
        let odd = how & 7 == 7;
        let lines = [256, 512, 1024, 65_536, 128, 300, 0, 257][if odd { input.below(8) } else { 0 }];
        let guard = if how & 32 == 0 { &world().guard } else { &world().arena };
        guard.word(0).store(0x5eed_5eed_5eed_5eed, Relaxed);
        let mut of = Intro {
            version: VERSION,
            host: gdrfab::sys::process::host_id().unwrap_or(gdrfab::sys::process::HOST_UNKNOWN),
            lines: lines as u32,
            fences: u32::from(how & 8 == 0),
            guard: if cma && how & 16 == 0 { (guard.addr(), 0x5eed_5eed_5eed_5eed) } else { (8, 0) },
            by_name: u32::from(by_name),
            name,
            data: b"hi",
        };
        let bytes = at::segment_bytes(lines);
        let seals = if odd && input.flag() {
            [0, libc::F_SEAL_GROW, libc::F_SEAL_SHRINK, SEALED | libc::F_SEAL_FUTURE_WRITE][input.below(4)]
        } else {
            SEALED
        };
        let segment = memfd(if odd && input.flag() { bytes - 4096 } else { bytes }, 0, 0);
        let table = memfd(TABLE_BYTES, 0, SEALED);
        if let (Some(s), Some(t)) = (Map::new(segment.as_raw_fd(), bytes), Map::new(table.as_raw_fd(), TABLE_BYTES)) {
            // Beyond the end of a file that is too short there is no memory.
            s.word(0).store(SEGMENT_MAGIC, Relaxed);
            s.word(LINES).store(lines as u64, Relaxed);
            t.word(0).store(TABLE_MAGIC, Relaxed);
            if size_of_file(&segment) >= bytes && lines.is_power_of_two() {
                self.land();
                self.mine = Some((s, lines));
            }
            self.table = Some(t);
        }
        // SAFETY: the file is ours; seals that do not fit are refused.
        unsafe { libc::fcntl(segment.as_raw_fd(), libc::F_ADD_SEALS, seals) };
        let mut fds = vec![segment.as_raw_fd(), table.as_raw_fd()];
        let mut kind = kind;
        if odd {
            match input.below(16) {
                0 => of.version = input.number() as u32,
                1 => of.host ^= 1,
                2 => of.lines = input.number() as u32,
                3 => fds.truncate(input.below(2)),
                4 => fds.extend((0..=input.below(6)).map(|n| world().file(n).as_raw_fd())),
                5 => fds[input.below(2)] = world().file(input.below(FILES)).as_raw_fd(),
                6 => fds.swap(0, 1),
                7 => of.by_name ^= 1,
                8 => kind = input.below(10) as u32,
                9 => of.name = b"\x01\xff",
                10 => of.data = &[7; 300],
                11 => of.guard = (guard.addr().wrapping_add(input.number()), input.number()),
                12 => self.mine.iter().for_each(|(s, _)| s.word(0).store(input.number(), Relaxed)),
                13 => self.table.iter().for_each(|t| t.word(0).store(input.number(), Relaxed)),
                _ => {}
            }
        }
        let mut packet = at::intro(kind, &of);
        if odd && input.below(4) == 0 {
            packet.truncate(packet.len() * input.below(16) / 15);
            packet.extend(input.bytes());
        }
        self.send(&packet, &fds);
    }

    /// Refuses the caller for a reason that the format defines, or for another one.
    pub fn refuse(&self, input: &mut Input<'_>) {
        let mut packet = at::packet(REFUSE);
        packet.extend((input.below(6) as u32).to_le_bytes());
        self.send(&packet, &[]);
    }

    pub fn send(&self, bytes: &[u8], fds: &[RawFd]) {
        if let Some(socket) = &self.socket {
            send(socket.as_raw_fd(), bytes, fds);
        }
    }

    /// Receives the packets that have arrived on the socket.
    pub fn hear(&mut self) {
        let Some(socket) = &self.socket else { return };
        while let Some((bytes, fds)) = receive(socket.as_raw_fd()) {
            assert!(!has_secret(&bytes), "memory was sent that the peer may not read");
            match word_of(&bytes, 4) as u32 {
                HELLO | ACCEPT if fds.len() == 2 && self.theirs.is_none() => {
                    let lines = word_of(&bytes, 16) as u32 as usize;
                    assert_eq!(size_of_file(&fds[0]), at::segment_bytes(lines), "the library's own segment");
                    self.theirs = Map::new(fds[0].as_raw_fd(), at::segment_bytes(lines)).map(|m| (m, lines));
                }
                FILE_ASK => self.asked.push(word_of(&bytes, 8)),
                _ => {}
            }
        }
    }

    pub fn end(&mut self) {
        self.socket = None;
    }

    /// One action that a peer may take at any moment.
    pub fn act(&mut self, input: &mut Input<'_>) {
        match input.below(24) {
            0..8 => self.message(input),
            8 => self.line(input),
            9 | 10 => self.word(input),
            11 | 12 => self.report(input),
            13 => self.claim(input),
            14 | 15 => self.read(input),
            16 | 17 => self.region(input),
            18 => self.record(input),
            19 => self.unpublish(input),
            20 => self.packet(input),
            21 => self.bring(input),
            22 => match input.below(8) {
                0 => self.end(),
                1 => drop(self.socket.as_ref().map(|s| {
                    // SAFETY: the socket is ours.
                    unsafe { libc::shutdown(s.as_raw_fd(), [libc::SHUT_WR, libc::SHUT_RD][input.below(2)]) }
                })),
                // SAFETY: the file is ours, and its size and holes change only as far as its seals allow.
                2 => drop(unsafe { libc::ftruncate(world().file(6 + input.below(2)).as_raw_fd(), input.size() as i64) }),
                // SAFETY: the file is ours, and its size and holes change only as far as its seals allow.
                3 => drop(unsafe {
                    let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                    libc::fallocate(world().file(input.below(FILES)).as_raw_fd(), hole, 0, 1 << 16)
                }),
                _ => self.hear(),
            },
            _ => self.stream(input),
        }
    }

    pub fn address(&self, input: &mut Input<'_>) -> u64 {
        let arena = world().arena.addr();
        match input.byte() {
            n @ 0..160 => arena + 64 * u64::from(n),
            160..200 => arena + (ARENA / 2) as u64,
            200..220 => (arena + ARENA as u64).wrapping_sub(input.number()),
            220..230 => 0,
            _ => input.number(),
        }
    }

    /// Key, address and length in a region of the library's.
    pub fn target(&self, input: &mut Input<'_>) -> (u64, u64, u64) {
        let Some(k) = some(&self.known, input.below(8)) else { return (input.number(), input.number(), input.number()) };
        let (mut key, mut addr, mut len) = (k.key, k.base, k.len);
        match input.byte() {
            0..128 => {}
            128..160 => len = len.min(input.size() as u64),
            160..200 => {
                addr = addr.wrapping_add(input.number());
                len = input.size() as u64;
            }
            200..220 => len = len.wrapping_add(input.number()),
            220..240 => addr = input.number(),
            _ => key ^= input.number(),
        }
        (key, addr, len)
    }

    pub fn file_place(&self, input: &mut Input<'_>) -> (u64, u64) {
        match input.byte() {
            0..100 => (0, 0),
            n @ 100..220 => (self.file_id(n as usize), [0, 0, 64, 4096][input.below(4)]),
            _ => (input.number(), input.number()),
        }
    }

    fn file_id(&self, n: usize) -> u64 {
        (4096 * (1 + usize::from(n % 8 == 7)) + n % 4) as u64
    }

    /// Publishes regions of all kinds, to begin with.
    pub fn furnish(&mut self, how: u8) {
        let Some(t) = &self.table else { return };
        for (id, file, known) in [(4096, 0, true), (4097, 4, true), (4098, 1, true), (4099, 1, false)] {
            let number = if known { world().file(file).as_raw_fd() as u64 } else { 1000 };
            let f = at::file(id);
            t.word(f + 8).store(size_of_file(world().file(file)) as u64, Relaxed);
            t.word(f + 16).store(number, Relaxed);
            t.word(f).store(id as u64, SeqCst);
        }
        for (k, x) in [[0, 65_536, 4096, 0], [0, 100_000, 4098, 64]].iter().enumerate() {
            x.iter().enumerate().for_each(|(i, w)| t.word(at::extent(k) + 8 * i).store(*w, Relaxed));
        }
        let (arena, event) = (world().arena.addr(), if how & 2 != 0 { EVENT } else { 0 });
        let key = |i: u64| at::provider_key(9, i);
        let regions = [
            [key(0), 64, 262_144, 48 | 1 << 16, 0, 4096, 64],
            [key(1), 64, 131_072, 48 | 2 << 16, arena, 0, 0],
            [key(2), 64, 100_000, 48 | 4 << 16 | event, 0, 0, 0],
            [key(3), 64, 70_000, 48 | 7 << 16 | event, arena, 4099, 0],
            [key(4), 64, 165_536, 48 | 1 << 16 | MULTI, 0, 0, 2],
            [key(5), 64, 65_536, 16 | 1 << 16, 0, 4097, 0],
        ];
        for (i, fields) in regions.into_iter().enumerate() {
            self.publish(i, fields, fields[0]);
        }
    }

    fn publish(&mut self, index: usize, fields: [u64; 7], gate: u64) {
        let Some(t) = &self.table else { return };
        let e = at::entry(index);
        t.word(e).store(0, SeqCst);
        fields.iter().enumerate().for_each(|(i, w)| t.word(e + 8 + 8 * i).store(*w, Relaxed));
        t.word(e).store(gate, SeqCst);
        t.word(at::key_place(fields[0])).store(index as u64 + 1, Relaxed);
        t.word(REACH).fetch_max(1, Relaxed);
        if self.regions.len() >= 8 {
            self.regions.remove(0);
        }
        self.regions.push(Known { key: fields[0], base: fields[1], len: fields[2] });
    }

    /// Publishes a region.
    fn region(&mut self, input: &mut Input<'_>) {
        let how = input.byte();
        let Some(t) = &self.table else { return };
        let index = if how & 15 == 15 { input.number() as usize % ENTRIES } else { input.below(4) };
        let len = input.size() as u64;
        let key = match how >> 4 & 3 {
            3 => input.number(),
            n => at::provider_key(1 + n as u64, index as u64),
        };
        let (base, addr) = (if how & 64 == 0 { 64 } else { input.number() }, self.address(input));
        let ways = [1, 2, 4, 7, 1, 3, 15, 8][input.below(8)];
        let mut rights = [48, 48, 48, 16, 32, 0][input.below(6)] | ways << 16;
        if input.below(8) == 0 {
            rights |= EVENT;
        }
        let (file, offset) = self.file_place(input);
        let mut fields = [key, base, len, rights, addr, file, offset];
        if how & 128 != 0 {
            let (first, count) = (input.below(8), 1 + input.below(3));
            for k in 0..count as u64 {
                let n = len / count as u64 + if k == 0 { len % count as u64 } else { 0 };
                let (file, offset) = self.file_place(input);
                let x = [self.address(input), n, file, offset];
                x.iter().enumerate().for_each(|(i, w)| t.word(at::extent(first + k as usize) + 8 * i).store(*w, Relaxed));
            }
            (fields[3], fields[4], fields[5], fields[6]) = (rights | MULTI, first as u64, 0, count as u64);
        }
        if how & 7 == 1 {
            fields[input.below(7)] = input.number();
        }
        if how & 7 == 3 {
            t.word(REACH).store(u64::MAX, Relaxed);
        }
        let gate = if how & 7 == 2 { input.number() } else { key | 1 };
        self.publish(index, fields, gate);
    }

    /// Publishes a record that describes a file.
    fn record(&mut self, input: &mut Input<'_>) {
        let how = input.byte();
        let Some(t) = &self.table else { return };
        let id = self.file_id(input.below(8));
        let n = input.below(FILES);
        let size = match how & 7 {
            0 => input.number(),
            1 => input.size() as u64,
            _ => size_of_file(world().file(n)) as u64,
        };
        let number = match how >> 3 & 7 {
            0 => u64::MAX,
            1 | 2 => input.number().wrapping_add(1000),
            3 => input.number(),
            _ => world().file(n).as_raw_fd() as u64,
        };
        let device = if how >> 6 == 3 { input.number() } else { 0 };
        let f = at::file(id as usize);
        [size, number, device].iter().enumerate().for_each(|(i, w)| t.word(f + 8 + 8 * i).store(*w, Relaxed));
        t.word(f).store(id, SeqCst);
    }

    fn unpublish(&mut self, input: &mut Input<'_>) {
        let Some(t) = &self.table else { return };
        match input.below(4) {
            0 => t.word(at::entry(input.below(4))).store(0, SeqCst),
            1 => t.word(at::file(input.below(4))).store(0, SeqCst),
            2 => t.word(at::entry(input.below(4)) + 8 * input.below(8)).store(input.number(), SeqCst),
            _ => t.word(at::file(input.below(4)) + 8 * input.below(5)).store(input.number(), SeqCst),
        }
    }

    fn packet(&mut self, input: &mut Input<'_>) {
        let mut bytes = at::packet([WAKE, READY, BYE, FILE_ASK, FILE_BRING, REJECT, HELLO, 99, REFUSE][input.below(9)]);
        match bytes[4] {
            5 => bytes.extend(input.number().wrapping_add(4096).to_le_bytes()),
            4 | 7 | 8 => {}
            _ => bytes.extend(input.bytes()),
        }
        let fds: Vec<_> = (0..[0, 0, 0, 1, 3, 6][input.below(6)]).map(|n| world().file(n).as_raw_fd()).collect();
        for _ in 0..=[0, 0, 0, 40][input.below(4)] {
            self.send(&bytes, &fds);
        }
    }

    /// Sends a file that was requested, or another.
    fn bring(&mut self, input: &mut Input<'_>) {
        let how = input.byte();
        self.hear();
        let id = match self.asked.pop() {
            Some(id) if how & 7 != 0 => id,
            _ => self.file_id(input.below(8)),
        };
        let n = input.below(FILES);
        let size = if how & 8 == 0 { size_of_file(world().file(n)) as u64 } else { input.number() };
        let mut bytes = at::packet(FILE_BRING);
        [id, size].iter().for_each(|w| bytes.extend(w.to_le_bytes()));
        bytes.extend(u32::from(how & 16 == 0).to_le_bytes());
        let fds: Vec<_> = (0..[1, 1, 1, 0, 2][input.below(5)]).map(|k| world().file(n + k).as_raw_fd()).collect();
        self.send(&bytes, &fds);
    }

    /// Ends all device copies that the peer claims to make: such a copy is over when its peer says so or has died, and this one lives.
    pub fn land(&self) {
        if let Some((m, _)) = &self.mine {
            (0..64).for_each(|k| m.word(FLIGHTS + 8 * k).store(0, SeqCst));
        }
    }

    /// Searches all memory that the library may have written for data that must never be there.
    pub fn search(&self) {
        if let Some((m, lines)) = &self.mine {
            assert!(!has_secret(m.bytes(RING, RING + 64 * lines)), "memory was sent that the peer may not read");
            assert!(!has_secret(m.bytes(m.len - (128 << 10), m.len)), "memory was sent that the peer may not read");
        }
        assert!(!has_secret(world().arena.bytes(0, ARENA)), "memory was copied that the peer may not read");
    }
}
