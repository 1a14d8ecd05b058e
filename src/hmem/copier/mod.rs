// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies that a process of the library's own makes, for endpoints whose operations may call no driver
//! (`GDRFAB_OPT_DRIVER_CALLS`).
//!
//! A driver's call may wait, inside the driver, for kernels of the calling process; if such a kernel waits for the copy that
//! the call would start, nothing moves again. The locks are a process's own. So `gdrfab-copier` maps what this process and
//! its peers have exported, and copies what is put into a page that both share; nothing here enters a driver.

mod page;
mod serve;
mod wire;

use super::{DeviceId, Dir, Iface, Import, Interface, Offer, Site, Stream};
use crate::error::{Error, Result, errno};
use crate::sys::{epoll, fd, fork, process, socket, time};
use crate::{config, environment};
use page::{ENTRIES, Page};
use parking_lot::Mutex;
pub use serve::serve;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wire::{ANSWER_BYTES, Answer, Ask, HELLO, What, decode_answer};

/// Name of the program, which is installed in the directory `gdrfab` beside the library.
const PROGRAM: &str = "gdrfab-copier";
/// How long an answer may take; opening a driver takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an answer may take for which no driver is opened, and with it the close of an endpoint.
const SHORT: Duration = Duration::from_secs(10);
/// How long the kernel may take to end it.
const END_MS: u64 = 2000;
/// Polls without news after which it is asked whether the process lives.
const POLLS: u32 = 1 << 14;

/// The process that copies for this one. It ends with it.
///
/// It serves nobody else, so it may be killed when it does not answer: whatever it still copies would never end anyhow. Its
/// end proves that nothing touches the memory of its copies any more, because the kernel reports it after the driver let go.
pub struct Copier {
    socket: OwnedFd,
    /// One question at a time.
    turn: Mutex<()>,
    /// Wakes it.
    bell: OwnedFd,
    /// The kernel kills it when this is closed, at the latest with this process. None: it was closed.
    lifeline: Mutex<Option<OwnedFd>>,
    /// Tells of its end, here and to peers; none on kernels without.
    pidfd: Option<OwnedFd>,
    /// It is known to have ended.
    ended: AtomicBool,
    pub pid: i32,
    /// Number of the next stream.
    next: AtomicU64,
    /// Devices that it was asked to open, so that it is asked once.
    opened: Mutex<Vec<Site>>,
}

/// The copier of this process, started when first needed. A child of a fork needs its own.
pub fn get() -> Result<&'static Copier> {
    static NOW: Mutex<Option<(u64, &Copier)>> = Mutex::new(None);
    let instance = process::instance().load(Ordering::Relaxed);
    let mut now = NOW.lock();
    match &*now {
        Some((of, copier)) if *of == instance && copier.serves() => Ok(copier),
        _ => {
            let fresh: &Copier = Box::leak(Box::new(Copier::start()?));
            *now = Some((instance, fresh));
            Ok(fresh)
        }
    }
}

fn gone() -> Error {
    Error::fixed(errno::EIO, "the process that copies device memory (gdrfab-copier) has ended")
}

/// The file that holds this library's code.
fn own_file() -> Option<PathBuf> {
    // SAFETY: plain pointers, which may be NULL.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for; the name belongs to the loader and lives as long as this code.
    unsafe {
        if libc::dladdr(own_file as *const libc::c_void, &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let name = std::ffi::CStr::from_ptr(info.dli_fname);
        std::fs::canonicalize(std::ffi::OsStr::new(name.to_str().ok()?)).ok()
    }
}

/// Where the program is: where GDRFAB_COPIER says, or beside the library, or where a program that was linked with the static
/// library would have it.
fn program() -> Result<PathBuf> {
    if let Some(named) = &config::get().hmem.copier {
        let path = PathBuf::from(named);
        return if path.is_file() { Ok(path) } else { Err(Error::new(errno::ENOENT, format!("GDRFAB_COPIER: {named} is no file"))) };
    }
    let own =
        own_file().ok_or_else(|| Error::fixed(errno::ENOENT, "where this library lies is not known; GDRFAB_COPIER names the program"))?;
    let beside = own.parent().map(|dir| dir.join("gdrfab").join(PROGRAM)).unwrap_or_default();
    let of_program = own.parent().map(|dir| dir.join("../lib/gdrfab").join(PROGRAM)).unwrap_or_default();
    match [&beside, &of_program].into_iter().find(|p| p.is_file()) {
        Some(found) => Ok(found.clone()),
        None => Err(Error::new(errno::ENOENT, format!("{} is not there; GDRFAB_COPIER names another place", beside.display()))),
    }
}

impl Copier {
    fn start() -> Result<Copier> {
        let program = program().map_err(|e| e.context("the process that copies device memory"))?;
        Copier::run(&program).map_err(|e| e.context(format_args!("starting {}", program.display())))
    }

    fn run(program: &PathBuf) -> Result<Copier> {
        let (ours, theirs) = socket::pair()?;
        let (lifeline, its_lifeline) = socket::pair()?;
        let bell = epoll::bell().map_err(|e| Error::os("making an eventfd", e))?;
        fork::keep_from_children(ours.as_fd());
        fork::keep_from_children(lifeline.as_fd());
        let mut command = Command::new(program);
        // A session of its own: a signal to this process's group is not meant for it.
        command.env_remove("GDRFAB_HMEM_INIT").env_remove("GDRFAB_HMEM_THREAD").process_group(0);
        if environment::is_untrusted() {
            command.env_clear();
        }
        let held = fd::hold_standard();
        let child = command.stdin(Stdio::from(theirs)).stdout(Stdio::from(its_lifeline)).spawn();
        // It has this process's ends of the sockets, and their closing must show at the other side.
        drop((command, held));
        let mut child = child.map_err(|e| Error::new(e.raw_os_error().unwrap_or(errno::EIO), e.to_string()))?;
        // It leaves a child of its own behind and ends at once, so that nobody here has a child that he does not know.
        let until = Instant::now() + SHORT;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Error::fixed(errno::ETIMEDOUT, "it does not leave a process behind that copies"));
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        let mut copier = Copier {
            socket: ours,
            turn: Mutex::new(()),
            bell,
            lifeline: Mutex::new(Some(lifeline)),
            pidfd: None,
            ended: AtomicBool::new(false),
            pid: 0,
            next: AtomicU64::new(1),
            opened: Mutex::new(Vec::new()),
        };
        // A child made without the C library's fork keeps the sockets open, so the end does not show there.
        let own = process::open(process::pid()).ok();
        let fds: Vec<_> = [copier.bell.as_fd()].into_iter().chain(own.as_ref().map(AsFd::as_fd)).collect();
        copier.tell(HELLO.as_bytes(), &fds, SHORT)?;
        let (told, fd) = copier.hear(SHORT)?;
        // Its own number is another one here if this process starts children in another pid namespace.
        (copier.pid, copier.pidfd) = (fd.as_ref().and_then(process::pid_of).unwrap_or(told?.number as i32), fd);
        crate::log!(Info, "process {} copies device memory for this one", copier.pid);
        Ok(copier)
    }

    /// Tells peers when its copies are over for certain, if this process has ended.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Whether it hung up; what it copies may not be over then.
    fn has_ended(&self) -> bool {
        // Between questions it says nothing, so whatever is readable is the end.
        self.turn.try_lock().is_some_and(|_turn| socket::readable(&self.socket))
    }

    fn serves(&self) -> bool {
        self.lifeline.lock().is_some() && !self.has_ended()
    }

    /// Kills it and waits until it has ended, so that none of its copies is under way any more; bounded.
    fn end(&self) -> Result<()> {
        if self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        let fresh = self.lifeline.lock().take().is_some();
        if let Some(pidfd) = &self.pidfd
            && fresh
        {
            // It may run where closing the lifeline does not kill.
            let _ = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
        }
        let end = self.pidfd.as_ref().unwrap_or(&self.socket);
        let until = time::now_ns() + END_MS * 1_000_000;
        // Of the socket: readable for its end, whatever else was said before.
        while !process::ended(end) {
            if !fresh || time::now_ns() > until {
                return Err(Error::new(
                    errno::EBUSY,
                    format!(
                        "process {} (gdrfab-copier), which copies device memory for this one, was killed and has not ended; until it \
                         has, it may copy: call again",
                        self.pid
                    ),
                ));
            }
            socket::wait_readable(end, 10);
        }
        if fresh {
            crate::log!(Warn, "process {} (gdrfab-copier) copies device memory for this one no more: it has ended", self.pid);
        }
        self.ended.store(true, Ordering::Release);
        Ok(())
    }

    /// An error while it is not known whether it still copies: it was killed, and has not ended.
    pub fn check_quiet(&self) -> Result<()> {
        if self.lifeline.lock().is_some() { Ok(()) } else { self.end() }
    }

    /// Whether it has had its time since then; a stopped process gets no more of it.
    fn is_given_up(&self, since: Instant, limit: Duration) -> bool {
        let waited = since.elapsed();
        waited > limit || (waited.as_millis() as u64 > config::get().close_ms / 2 && process::is_stopped(self.pid))
    }

    fn silent(&self) -> Error {
        Error::new(errno::ETIMEDOUT, format!("process {} (gdrfab-copier), which copies device memory, does not answer", self.pid))
    }

    /// Sends a packet; the turn is the caller's.
    fn tell(&self, packet: &[u8], fds: &[BorrowedFd<'_>], limit: Duration) -> Result<()> {
        let since = Instant::now();
        while !socket::send(self.socket.as_fd(), packet, fds).map_err(|_| gone())? {
            if self.is_given_up(since, limit) {
                return Err(self.silent());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    fn ask(&self, ask: &Ask, fds: &[BorrowedFd<'_>], limit: Duration) -> Result<Answer> {
        let since = Instant::now();
        let turn = loop {
            if let Some(turn) = self.turn.try_lock_for(Duration::from_millis(100)) {
                break Ok(turn);
            }
            if self.is_given_up(since, limit) {
                break Err(self.silent());
            }
        };
        let told = turn.and_then(|_turn| self.tell(&ask.encode(), fds, limit).and_then(|()| self.hear(limit)));
        match told {
            Ok((answer, _)) => answer,
            Err(e) => {
                // A late answer would be taken for the answer to the next question, so it is killed. Whoever depends on its end
                // waits for that.
                let _ = self.end();
                Err(e)
            }
        }
    }

    /// Waits for an answer; in it lies what was refused.
    fn hear(&self, limit: Duration) -> Result<(Result<Answer>, Option<OwnedFd>)> {
        let since = Instant::now();
        let mut answer = vec![0; ANSWER_BYTES];
        loop {
            match socket::recv(self.socket.as_fd(), &mut answer)? {
                socket::Received::Packet { len, mut fds, .. } => {
                    return Ok((decode_answer(answer.get(..len).unwrap_or_default()), fds.pop()));
                }
                socket::Received::Closed => return Err(gone()),
                socket::Received::Nothing if self.is_given_up(since, limit) => return Err(self.silent()),
                socket::Received::Nothing => socket::wait_readable(&self.socket, 100),
            }
        }
    }

    /// Has it open the devices that this process uses, so that what it cannot do is known before it is needed.
    pub fn prepare(&self) -> Result<()> {
        for iface in Iface::ALL.into_iter().filter(|i| *i != Iface::System) {
            let Some(up) = super::opened(iface) else { continue };
            for device in (0..up.devices().len() as u32).filter(|d| up.active(*d)) {
                self.open(Site { iface, device })?;
            }
        }
        Ok(())
    }

    fn open(&self, site: Site) -> Result<()> {
        let mut opened = self.opened.lock();
        if !opened.contains(&site) {
            self.ask(&Ask::new(What::Open, site.iface, device_id(site)?), &[], PATIENCE)?;
            opened.push(site);
        }
        Ok(())
    }

    /// Maps over there what this process or a peer exported; the addresses are that process's. `maker`: the device that copies.
    pub fn import(&'static self, iface: Iface, offer: &Offer<'_>, maker: Option<u32>) -> Result<Import> {
        let up = super::get(iface)?;
        // Of a device that was opened before: to ask which are in use would call the driver.
        let maker = maker.or_else(|| self.opened.lock().iter().find(|site| site.iface == iface).map(|site| site.device));
        let maker_id = maker.map(|device| device_id(Site { iface, device })).transpose()?;
        let ask = Ask { maker: maker_id, how: offer.how, len: offer.len, handle: offer.handle, ..Ask::new(What::Map, iface, offer.device) };
        let told = self.ask(&ask, offer.fd.as_slice(), PATIENCE)?;
        let device = up.devices().iter().position(|f| f.id == told.device).map(|d| d as u32).or(maker).unwrap_or(0);
        let undo = move || {
            // Not waited for. If it has ended, its mappings have too; if its socket is full, it keeps them.
            if let Some(_turn) = self.turn.try_lock_for(Duration::from_millis(config::get().close_ms)) {
                let _ = socket::send(self.socket.as_fd(), &Ask::of(What::Unmap, told.number).encode(), &[]);
            }
        };
        Ok(Import { iface, device, base: told.base, len: told.len, undo: Some(Box::new(undo)) })
    }

    /// An order of copies between what `import` gave.
    pub fn stream(&'static self, site: Site) -> Result<Box<dyn Stream>> {
        let (page, fd) = Page::new()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let ask = Ask { number, ..Ask::new(What::Stream, site.iface, device_id(site)?) };
        self.ask(&ask, &[fd.as_fd()], PATIENCE)?;
        Ok(Box::new(Away { copier: self, number, page, posted: 0, polls: 0, ending: None, over: false }))
    }
}

fn device_id(site: Site) -> Result<DeviceId> {
    let up: &dyn Interface = super::get(site.iface)?;
    let facts = up.devices().get(site.device as usize);
    facts.map(|f| f.id).ok_or_else(|| Error::new(errno::ENODEV, format!("{site} is no device of this process")))
}

/// Copies that are made elsewhere.
struct Away {
    copier: &'static Copier,
    number: u64,
    page: Page,
    posted: u64,
    polls: u32,
    /// Since when nothing more is to begin.
    ending: Option<Instant>,
    /// No copy is under way, and none will be.
    over: bool,
}

impl Away {
    fn wake(&self) {
        if self.page.wants_waking() {
            let _ = rustix::io::write(&self.copier.bell, &1u64.to_ne_bytes());
        }
    }

    /// An error tells that the stream has ended, and its copies with it.
    fn alive(&mut self) -> Result<()> {
        match self.page.failed() {
            0 => {}
            errno => {
                let told = self.copier.ask(&Ask::of(What::Why, self.number), &[], SHORT);
                return Err(told.map_or_else(|e| e, |told| Error::new(if told.errno == 0 { errno } else { told.errno }, told.words)));
            }
        }
        self.polls += 1;
        if self.polls >= POLLS {
            self.polls = 0;
            // Copies of a process that hung up are over when it has ended; until then they are under way.
            if self.copier.has_ended() && self.copier.end().is_ok() {
                return Err(gone());
            }
        }
        Ok(())
    }
}

impl Stream for Away {
    unsafe fn post(&mut self, dir: Dir, to: u64, from: u64, len: usize) -> Result<u64> {
        if dir != Dir::Within {
            return Err(Error::fixed(errno::EOPNOTSUPP, "the process that copies reaches no host memory"));
        }
        let since = Instant::now();
        while self.posted.saturating_sub(self.page.done()) >= ENTRIES {
            self.alive()?;
            if self.copier.is_given_up(since, SHORT) {
                return Err(self.copier.silent());
            }
            std::thread::yield_now();
        }
        self.posted += 1;
        self.page.post(self.posted, to, from, len as u64);
        self.wake();
        Ok(self.posted)
    }

    fn after(&mut self, _stream: u64) -> Result<()> {
        Err(Error::fixed(errno::ENOSYS, "GDRFAB_OPT_STREAM: no stream of this process reaches the process that copies"))
    }

    fn done(&mut self) -> Result<u64> {
        let done = self.page.done();
        if done == self.posted {
            self.polls = 0;
        } else {
            self.alive()?;
        }
        Ok(done)
    }

    fn end(&mut self) -> Result<bool> {
        if self.over {
            return Ok(true);
        }
        let since = match self.ending {
            Some(since) => since,
            None => {
                self.page.set_closing();
                self.wake();
                *self.ending.insert(Instant::now())
            }
        };
        self.over = self.page.is_closed();
        if !self.over && (self.copier.has_ended() || self.copier.is_given_up(since, SHORT)) {
            self.copier.end()?;
            self.over = true;
        }
        Ok(self.over)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        while matches!(self.end(), Ok(false)) {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}
