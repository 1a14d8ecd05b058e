// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies that a helper process makes, for endpoints whose operations must not call a driver
//! (`GDRFAB_OPT_DRIVER_CALLS`).
//!
//! A driver call may wait, inside the driver, for kernels of the calling process. If such a kernel in turn waits for
//! the copy that this call would start, both wait for ever. The driver's locks belong to one process, so the library
//! starts the program `gdrfab-copier`. That process maps the memory that this process and its peers have exported, and
//! makes the copies that this process writes into a shared ring. Nothing in this file calls a driver.
//!
//! `mod.rs` is this process's side, `serve.rs` the helper's; `wire.rs` has the packets of the socket between them, and
//! `ring.rs` the shared memory of a stream.

mod ring;
mod serve;
mod wire;

use super::{DeviceId, Dir, Iface, Import, Interface, Offer, Site, Stream};
use crate::error::{Error, Result, errno};
use crate::sys::{epoll, fd, fork, process, socket, time};
use crate::{config, environment};
use parking_lot::Mutex;
use ring::{CopyRing, ENTRIES};
pub use serve::serve;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wire::{ANSWER_BYTES, Answer, HELLO, Request, RequestKind, decode_answer};

/// Name of the program, which is installed in the directory `gdrfab` beside the library.
const PROGRAM: &str = "gdrfab-copier";
/// Time limit for an answer that may open a driver, which takes seconds.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for an answer that opens no driver, and thus for the close of an endpoint.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the kernel to end the killed helper.
const KILL_TIMEOUT_MS: u64 = 2000;
/// Number of polls without progress after which this process checks whether the helper still lives.
const POLLS_PER_CHECK: u32 = 1 << 14;

/// The helper process that copies for this one, and ends when this process ends.
///
/// The helper serves no other process, so this process may kill it when it does not answer; a copy that the helper
/// still makes would never be reported as done anyway. The kernel reports the end of the helper only after the driver
/// has let go of the memory, so the end proves that no copy accesses memory any more.
pub struct Copier {
    socket: OwnedFd,
    /// Held while a request waits for its answer, so that there is one request at a time.
    requests: Mutex<()>,
    /// The eventfd that wakes the sleeping helper.
    wake_fd: OwnedFd,
    /// The kernel kills the helper when this socket is closed, which happens at the latest when this process ends.
    /// `None`: this process has closed the socket to kill the helper.
    lifeline: Mutex<Option<OwnedFd>>,
    /// A pidfd of the helper, which shows this process and peers when the helper has ended. `None` on kernels without
    /// pidfds.
    pidfd: Option<OwnedFd>,
    /// True if the helper is known to have ended.
    exited: AtomicBool,
    pub pid: i32,
    /// Number of the next stream.
    next: AtomicU64,
    /// Devices that the helper was asked to open. Each is asked for once.
    opened_devices: Mutex<Vec<Site>>,
}

/// The helper of this process, started when first needed. A child of a fork starts its own.
pub fn get() -> Result<&'static Copier> {
    static CURRENT: Mutex<Option<(u64, &Copier)>> = Mutex::new(None);
    let instance = process::instance().load(Ordering::Relaxed);
    let mut current = CURRENT.lock();
    match &*current {
        Some((of, copier)) if *of == instance && copier.serves() => Ok(copier),
        _ => {
            let fresh: &Copier = Box::leak(Box::new(Copier::start()?));
            *current = Some((instance, fresh));
            Ok(fresh)
        }
    }
}

fn gone() -> Error {
    Error::fixed(errno::EIO, "the copier process (gdrfab-copier) has ended")
}

/// The file that contains this library's code.
fn own_file() -> Option<PathBuf> {
    // SAFETY: zeros are a valid `Dl_info`, which has only pointers, and these may be NULL.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr accepts any address. The name belongs to the loader, and stays valid as long as this code is
    // loaded.
    unsafe {
        if libc::dladdr(own_file as *const libc::c_void, &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let name = std::ffi::CStr::from_ptr(info.dli_fname);
        std::fs::canonicalize(std::ffi::OsStr::new(name.to_str().ok()?)).ok()
    }
}

/// The path of the program: the word copier of GDRFAB_DEBUG, or the directory `gdrfab` beside the library, or
/// `../lib/gdrfab` beside a program that was linked with the static library.
fn program() -> Result<PathBuf> {
    if let Some(named) = &config::get().debug.copier {
        let path = PathBuf::from(named);
        return if path.is_file() {
            Ok(path)
        } else {
            Err(Error::new(errno::ENOENT, format!("GDRFAB_DEBUG: copier={named} is not a file")))
        };
    }
    let own = own_file().ok_or_else(|| {
        Error::fixed(errno::ENOENT, "the directory of this library is unknown; GDRFAB_DEBUG=copier=FILE names the program gdrfab-copier")
    })?;
    let beside = own.parent().map(|dir| dir.join("gdrfab").join(PROGRAM)).unwrap_or_default();
    let of_program = own.parent().map(|dir| dir.join("../lib/gdrfab").join(PROGRAM)).unwrap_or_default();
    match [&beside, &of_program].into_iter().find(|p| p.is_file()) {
        Some(found) => Ok(found.clone()),
        None => Err(Error::new(
            errno::ENOENT,
            format!("{} does not exist; GDRFAB_DEBUG=copier=FILE names the program gdrfab-copier", beside.display()),
        )),
    }
}

impl Copier {
    fn start() -> Result<Copier> {
        let program = program().map_err(|e| e.context("starting the copier process (gdrfab-copier)"))?;
        Copier::run(&program).map_err(|e| e.context(format_args!("starting {}", program.display())))
    }

    fn run(program: &PathBuf) -> Result<Copier> {
        let (ours, theirs) = socket::pair()?;
        let (lifeline, its_lifeline) = socket::pair()?;
        let wake_fd = epoll::wake_event().map_err(|e| Error::os("creating an eventfd", e))?;
        fork::keep_from_children(ours.as_fd());
        fork::keep_from_children(lifeline.as_fd());
        let mut command = Command::new(program);
        // A process group of its own, so that signals to the caller's process group do not reach the helper.
        command.env_remove("GDRFAB_HMEM_DRIVER").process_group(0);
        if environment::is_untrusted() {
            command.env_clear();
        }
        let held = fd::hold_standard();
        let child = command.stdin(Stdio::from(theirs)).stdout(Stdio::from(its_lifeline)).spawn();
        // The command still owns this process's descriptors of the helper's ends of the sockets. These descriptors must
        // be closed, so that this process sees when the helper ends.
        drop((command, held));
        let mut child = child.map_err(|e| Error::new(e.raw_os_error().unwrap_or(errno::EIO), e.to_string()))?;
        // The started process forks the helper and exits at once, so the caller's process gets no child that it does
        // not know.
        let until = Instant::now() + REPLY_TIMEOUT;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Error::fixed(errno::ETIMEDOUT, "the started program did not fork the copier process and exit"));
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        let mut copier = Copier {
            socket: ours,
            requests: Mutex::new(()),
            wake_fd,
            lifeline: Mutex::new(Some(lifeline)),
            pidfd: None,
            exited: AtomicBool::new(false),
            pid: 0,
            next: AtomicU64::new(1),
            opened_devices: Mutex::new(Vec::new()),
        };
        // A child that this process makes without the C library's fork keeps the sockets open, so their closing does
        // not show this process's end. The helper gets a pidfd for that.
        let own = process::open(process::pid()).ok();
        let fds: Vec<_> = [copier.wake_fd.as_fd()].into_iter().chain(own.as_ref().map(AsFd::as_fd)).collect();
        copier.send_packet(HELLO.as_bytes(), &fds, REPLY_TIMEOUT)?;
        let (answer, fd) = copier.receive_answer(REPLY_TIMEOUT)?;
        // The pid that the helper reports is another one here if this process starts its children in another pid
        // namespace.
        (copier.pid, copier.pidfd) = (fd.as_ref().and_then(process::pid_of).unwrap_or(answer?.number as i32), fd);
        crate::log!(Info, "process {} (gdrfab-copier) copies device memory for this process", copier.pid);
        Ok(copier)
    }

    /// A pidfd of the helper. With the pidfd, peers learn when the helper's copies are certainly over, even if this
    /// process has ended.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// True if the helper closed its socket. Copies of the helper may still be in flight.
    fn has_hung_up(&self) -> bool {
        // Between requests the helper sends nothing, so a readable socket means that it was closed.
        self.requests.try_lock().is_some_and(|_requests| socket::readable(&self.socket))
    }

    fn serves(&self) -> bool {
        self.lifeline.lock().is_some() && !self.has_hung_up()
    }

    /// Kills the helper and waits, for a bounded time, until it has ended. Then none of its copies is in flight.
    fn kill_and_wait(&self) -> Result<()> {
        if self.exited.load(Ordering::Acquire) {
            return Ok(());
        }
        let fresh = self.lifeline.lock().take().is_some();
        if let Some(pidfd) = &self.pidfd
            && fresh
        {
            // Closing the lifeline may not kill a helper in a sandbox or another pid namespace, so the signal is sent
            // as well.
            let _ = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
        }
        let end = self.pidfd.as_ref().unwrap_or(&self.socket);
        let until = time::now_ns() + KILL_TIMEOUT_MS * 1_000_000;
        // Without a pidfd the socket is watched: it is readable when the helper has ended, and also if an answer was
        // left unread.
        while !process::ended(end) {
            if !fresh || time::now_ns() > until {
                return Err(Error::new(
                    errno::EBUSY,
                    format!("the copier process {} (gdrfab-copier) was killed but has not ended, and may still copy; call again", self.pid),
                ));
            }
            socket::wait_readable(end, 10);
        }
        if fresh {
            crate::log!(
                Warn,
                "the copier process {} (gdrfab-copier) has ended; this process's copies of device memory fail until another is started",
                self.pid
            );
        }
        self.exited.store(true, Ordering::Release);
        Ok(())
    }

    /// Fails while a helper that was killed has not ended: until then it may still copy.
    pub fn check_quiet(&self) -> Result<()> {
        if self.lifeline.lock().is_some() { Ok(()) } else { self.kill_and_wait() }
    }

    /// True if the time limit since `since` has passed. A helper that is stopped (by a signal or a debugger) gets half
    /// of the close timeout at most.
    fn timed_out(&self, since: Instant, limit: Duration) -> bool {
        let waited = since.elapsed();
        waited > limit || (waited.as_millis() as u64 > config::get().close_ms / 2 && process::is_stopped(self.pid))
    }

    fn no_answer(&self) -> Error {
        Error::new(errno::ETIMEDOUT, format!("the copier process {} (gdrfab-copier) does not answer", self.pid))
    }

    /// Sends one packet. The caller holds `requests`.
    fn send_packet(&self, packet: &[u8], fds: &[BorrowedFd<'_>], limit: Duration) -> Result<()> {
        let since = Instant::now();
        while !socket::send(self.socket.as_fd(), packet, fds).map_err(|_| gone())? {
            if self.timed_out(since, limit) {
                return Err(self.no_answer());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    fn request(&self, request: &Request, fds: &[BorrowedFd<'_>], limit: Duration) -> Result<Answer> {
        let since = Instant::now();
        let requests = loop {
            if let Some(requests) = self.requests.try_lock_for(Duration::from_millis(100)) {
                break Ok(requests);
            }
            if self.timed_out(since, limit) {
                break Err(self.no_answer());
            }
        };
        let answer =
            requests.and_then(|_requests| self.send_packet(&request.encode(), fds, limit).and_then(|()| self.receive_answer(limit)));
        match answer {
            Ok((answer, _)) => answer,
            Err(e) => {
                // A late answer would be taken for the answer to the next request, so the helper is killed. Callers
                // that depend on its end wait for that themselves.
                let _ = self.kill_and_wait();
                Err(e)
            }
        }
    }

    /// Receives an answer. The inner result is the helper's error if it refused the request.
    fn receive_answer(&self, limit: Duration) -> Result<(Result<Answer>, Option<OwnedFd>)> {
        let since = Instant::now();
        let mut answer = vec![0; ANSWER_BYTES];
        loop {
            match socket::recv(self.socket.as_fd(), &mut answer)? {
                socket::Received::Packet { len, mut fds, .. } => {
                    return Ok((decode_answer(answer.get(..len).unwrap_or_default()), fds.pop()));
                }
                socket::Received::Closed => return Err(gone()),
                socket::Received::Nothing if self.timed_out(since, limit) => return Err(self.no_answer()),
                socket::Received::Nothing => socket::wait_readable(&self.socket, 100),
            }
        }
    }

    /// Has the helper open the devices that this process uses, so that a failure shows now and not when a copy is
    /// needed.
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
        let mut opened = self.opened_devices.lock();
        if !opened.contains(&site) {
            self.request(&Request::new(RequestKind::Open, site.iface, device_id(site)?), &[], DRIVER_TIMEOUT)?;
            opened.push(site);
        }
        Ok(())
    }

    /// Maps, in the helper, memory that this process or a peer exported; the addresses in the result are the helper's.
    /// `copying_device` is the device that shall copy.
    pub fn import(&'static self, iface: Iface, offer: &Offer<'_>, copying_device: Option<u32>) -> Result<Import> {
        let up = super::get(iface)?;
        // Without a choice of the caller, any device that was opened before will do, because this file must not ask the
        // driver which devices are in use.
        let copying_device =
            copying_device.or_else(|| self.opened_devices.lock().iter().find(|site| site.iface == iface).map(|site| site.device));
        let copying_id = copying_device.map(|device| device_id(Site { iface, device })).transpose()?;
        let request = Request {
            copying_device: copying_id,
            how: offer.how,
            len: offer.len,
            handle: offer.handle,
            ..Request::new(RequestKind::Map, iface, offer.device)
        };
        let answer = self.request(&request, offer.fd.as_slice(), DRIVER_TIMEOUT)?;
        let device = up.devices().iter().position(|f| f.id == answer.device).map(|d| d as u32).or(copying_device).unwrap_or(0);
        let undo = move || {
            // The answer is not waited for. If the helper has ended, its mappings are gone too. If its socket is full,
            // the helper keeps this mapping.
            if let Some(_requests) = self.requests.try_lock_for(Duration::from_millis(config::get().close_ms)) {
                let _ = socket::send(self.socket.as_fd(), &Request::of(RequestKind::Unmap, answer.number).encode(), &[]);
            }
        };
        Ok(Import { iface, device, base: answer.base, len: answer.len, undo: Some(Box::new(undo)) })
    }

    /// A stream of copies between memory that `import` mapped.
    pub fn stream(&'static self, site: Site) -> Result<Box<dyn Stream>> {
        let (ring, fd) = CopyRing::new()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let request = Request { number, ..Request::new(RequestKind::Stream, site.iface, device_id(site)?) };
        self.request(&request, &[fd.as_fd()], DRIVER_TIMEOUT)?;
        Ok(Box::new(RemoteStream { copier: self, number, ring, posted: 0, polls: 0, closing_since: None, closed: false }))
    }
}

fn device_id(site: Site) -> Result<DeviceId> {
    let up: &dyn Interface = super::get(site.iface)?;
    let facts = up.devices().get(site.device as usize);
    facts.map(|f| f.id).ok_or_else(|| Error::new(errno::ENODEV, format!("{site} is not a device of this process")))
}

/// A stream whose copies the helper makes.
struct RemoteStream {
    copier: &'static Copier,
    number: u64,
    ring: CopyRing,
    posted: u64,
    polls: u32,
    /// Time of the first call of `end`. After that call no copy may begin.
    closing_since: Option<Instant>,
    /// True if no copy is in flight and none will begin.
    closed: bool,
}

impl RemoteStream {
    fn wake(&self) {
        if self.ring.must_wake() {
            let _ = rustix::io::write(&self.copier.wake_fd, &1u64.to_ne_bytes());
        }
    }

    /// An error means that the stream has ended, and that none of its copies is in flight.
    fn check_alive(&mut self) -> Result<()> {
        match self.ring.failed() {
            0 => {}
            errno => {
                let answer = self.copier.request(&Request::of(RequestKind::Failure, self.number), &[], REPLY_TIMEOUT);
                return Err(
                    answer.map_or_else(|e| e, |answer| Error::new(if answer.errno == 0 { errno } else { answer.errno }, answer.words))
                );
            }
        }
        self.polls += 1;
        if self.polls >= POLLS_PER_CHECK {
            self.polls = 0;
            // A helper that closed its socket may still copy. The stream has ended only once the process has.
            if self.copier.has_hung_up() && self.copier.kill_and_wait().is_ok() {
                return Err(gone());
            }
        }
        Ok(())
    }
}

impl Stream for RemoteStream {
    unsafe fn post(&mut self, dir: Dir, to: u64, from: u64, len: usize) -> Result<u64> {
        if dir != Dir::Within {
            return Err(Error::fixed(errno::EOPNOTSUPP, "the copier process (gdrfab-copier) cannot access host memory"));
        }
        let since = Instant::now();
        while self.posted.saturating_sub(self.ring.done()) >= ENTRIES {
            self.check_alive()?;
            if self.copier.timed_out(since, REPLY_TIMEOUT) {
                return Err(self.copier.no_answer());
            }
            std::thread::yield_now();
        }
        self.posted += 1;
        self.ring.post(self.posted, to, from, len as u64);
        self.wake();
        Ok(self.posted)
    }

    fn after(&mut self, _stream: u64) -> Result<()> {
        Err(Error::fixed(errno::ENOSYS, "GDRFAB_OPT_STREAM: the copier process (gdrfab-copier) cannot wait for a stream of this process"))
    }

    fn done(&mut self) -> Result<u64> {
        let done = self.ring.done();
        if done == self.posted {
            self.polls = 0;
        } else {
            self.check_alive()?;
        }
        Ok(done)
    }

    fn end(&mut self) -> Result<bool> {
        if self.closed {
            return Ok(true);
        }
        let since = match self.closing_since {
            Some(since) => since,
            None => {
                self.ring.set_closing();
                self.wake();
                *self.closing_since.insert(Instant::now())
            }
        };
        self.closed = self.ring.is_closed();
        if !self.closed && (self.copier.has_hung_up() || self.copier.timed_out(since, REPLY_TIMEOUT)) {
            self.copier.kill_and_wait()?;
            self.closed = true;
        }
        Ok(self.closed)
    }
}

impl Drop for RemoteStream {
    fn drop(&mut self) {
        while matches!(self.end(), Ok(false)) {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}
