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
use crate::config;
use crate::error::{Error, Result, errno};
use crate::sys::{fork, process, socket};
use page::{ENTRIES, Page};
use parking_lot::Mutex;
pub use serve::serve;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wire::{ANSWER_BYTES, Answer, Ask, HELLO, What, decode_answer};

/// Name of the program, which is installed in the directory `gdrfab` beside the library.
const PROGRAM: &str = "gdrfab-copier";
/// How long an answer may take; opening a driver takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Polls without news after which it is asked whether the process lives.
const POLLS: u32 = 1 << 14;

/// The process that copies for this one. It ends with it.
pub struct Copier {
    socket: OwnedFd,
    /// One question at a time.
    turn: Mutex<()>,
    /// Wakes it.
    bell: OwnedFd,
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
        Some((of, copier)) if *of == instance && !copier.has_ended() => Ok(copier),
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
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK)
            .map_err(|e| Error::os("making an eventfd", e))?;
        fork::keep_from_children(ours.as_fd());
        let mut command = Command::new(program);
        // Its drivers are its own affair; a signal to this process's group is not meant for it.
        command.env_remove("GDRFAB_HMEM_INIT").env_remove("GDRFAB_HMEM_THREAD").process_group(0);
        let child = command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn();
        // With it goes its end of the connection, whose closing over there is to be seen.
        drop(command);
        let mut child = child.map_err(|e| Error::new(e.raw_os_error().unwrap_or(errno::EIO), e.to_string()))?;
        // It leaves a child of its own behind and ends at once, so that nobody here has a child that he does not know.
        let _ = child.wait();
        let mut copier =
            Copier { socket: ours, turn: Mutex::new(()), bell, pid: 0, next: AtomicU64::new(1), opened: Mutex::new(Vec::new()) };
        let told = copier.say(HELLO.as_bytes(), &[copier.bell.as_fd()])?;
        copier.pid = told.number as i32;
        crate::log!(Info, "process {} copies device memory for this one", copier.pid);
        Ok(copier)
    }

    fn has_ended(&self) -> bool {
        // Between questions it says nothing, so whatever is readable is the end.
        self.turn.try_lock().is_some_and(|_turn| socket::readable(&self.socket))
    }

    /// Sends a packet; the turn is the caller's.
    fn tell(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while !socket::send(self.socket.as_fd(), packet, fds).map_err(|_| gone())? {
            if Instant::now() > until {
                return Err(Error::fixed(errno::ETIMEDOUT, "the process that copies device memory does not listen"));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    fn say(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Answer> {
        let _turn = self.turn.lock();
        let answer = self.tell(packet, fds).and_then(|()| self.hear());
        // An answer that came late would be taken for that of the next question.
        if answer.is_err() {
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
        answer?
    }

    /// Waits for an answer; in it lies what was refused.
    fn hear(&self) -> Result<Result<Answer>> {
        let until = Instant::now() + PATIENCE;
        let mut answer = vec![0; ANSWER_BYTES];
        loop {
            match socket::recv(self.socket.as_fd(), &mut answer)? {
                socket::Received::Packet { len, .. } => return Ok(decode_answer(answer.get(..len).unwrap_or_default())),
                socket::Received::Closed => return Err(gone()),
                socket::Received::Nothing if Instant::now() > until => {
                    return Err(Error::fixed(errno::ETIMEDOUT, "the process that copies device memory does not answer"));
                }
                socket::Received::Nothing => socket::wait_readable(&self.socket, 1000),
            }
        }
    }

    fn ask(&self, ask: &Ask, fds: &[BorrowedFd<'_>]) -> Result<Answer> {
        self.say(&ask.encode(), fds)
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
            self.ask(&Ask::new(What::Open, site.iface, device_id(site)?), &[])?;
            opened.push(site);
        }
        Ok(())
    }

    /// Maps over there what this process or a peer exported; the addresses are that process's. `near`: the device that copies.
    pub fn import(&'static self, iface: Iface, offer: &Offer<'_>, near: Option<u32>) -> Result<Import> {
        let up = super::get(iface)?;
        // Of a device that was opened before: to ask which are in use would call the driver.
        let near = near.or_else(|| self.opened.lock().iter().find(|site| site.iface == iface).map(|site| site.device));
        let near_id = near.map(|device| device_id(Site { iface, device })).transpose()?;
        let ask = Ask { near: near_id, how: offer.how, len: offer.len, handle: offer.handle, ..Ask::new(What::Map, iface, offer.device) };
        let told = self.ask(&ask, offer.fd.as_slice())?;
        let device = up.devices().iter().position(|f| f.id == told.device).map(|d| d as u32).or(near).unwrap_or(0);
        let undo = move || {
            // Nobody waits for that. If it has ended, so have its mappings.
            let _turn = self.turn.lock();
            let _ = self.tell(&Ask::of(What::Unmap, told.number).encode(), &[]);
        };
        Ok(Import { iface, device, base: told.base, len: told.len, undo: Some(Box::new(undo)) })
    }

    /// An order of copies between what `import` gave.
    pub fn stream(&'static self, site: Site) -> Result<Box<dyn Stream>> {
        let (page, fd) = Page::new()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let ask = Ask { number, ..Ask::new(What::Stream, site.iface, device_id(site)?) };
        self.ask(&ask, &[fd.as_fd()])?;
        Ok(Box::new(Away { copier: self, number, page, posted: 0, polls: 0 }))
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
}

impl Away {
    fn alive(&mut self) -> Result<()> {
        match self.page.failed() {
            0 => {}
            errno => {
                let told = self.copier.ask(&Ask::of(What::Why, self.number), &[]);
                return Err(told.map_or_else(|e| e, |told| Error::new(if told.errno == 0 { errno } else { told.errno }, told.words)));
            }
        }
        self.polls += 1;
        if self.polls >= POLLS {
            self.polls = 0;
            if self.copier.has_ended() {
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
        while self.posted - self.page.done() >= ENTRIES {
            self.alive()?;
            std::thread::yield_now();
        }
        self.posted += 1;
        self.page.post(self.posted, to, from, len as u64);
        if self.page.wants_waking() {
            let _ = rustix::io::write(&self.copier.bell, &1u64.to_ne_bytes());
        }
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
}

impl Drop for Away {
    fn drop(&mut self) {
        // Answered when the stream's copies are over.
        let _ = self.copier.ask(&Ask::of(What::Close, self.number), &[]);
    }
}
