// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls a vendor's driver on one thread of the library and on no other, for callers whose threads must not enter a
//! driver (`GDRFAB_HMEM_DRIVER=thread`). Each call is passed to that thread and waits for its result, which costs two thread
//! switches.

use super::{Allocation, DeviceFacts, Dir, DmaBuf, Export, Iface, Import, Interface, Offer, Pinned, Stream, StreamCopy, Undo};
use crate::error::{Error, Result, errno};
use crate::sys::thread;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

type Work<'a> = Box<dyn FnOnce() + Send + 'a>;

/// A closure, and a sender that is dropped after the closure has run or was dropped. The receiver of that sender thus
/// learns that nothing borrowed by the closure is used any more. The closure comes first, because fields are dropped in
/// their order.
type Job = (Work<'static>, Sender<Infallible>);

/// The thread that calls the driver. The thread ends when the last `Worker` is dropped.
#[derive(Clone)]
struct Worker(Arc<Mutex<Sender<Job>>>);

fn gone() -> Error {
    Error::fixed(errno::EIO, "the library's thread that calls this vendor's driver has ended")
}

impl Worker {
    fn start(name: &str) -> Result<Worker> {
        let (give, jobs) = channel::<Job>();
        let work = move || {
            for (work, over) in jobs {
                work();
                drop(over);
            }
        };
        thread::spawn(&format!("gdrfab-{name}"), work)
            .map_err(|e| Error::new(e.raw_os_error().unwrap_or(errno::EAGAIN), format!("starting a thread for the driver: {e}")))?;
        Ok(Worker(Arc::new(Mutex::new(give))))
    }

    /// Runs `f` on the worker thread and waits for its result.
    fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> Result<R> {
        let mut answer = None;
        self.finish(Box::new(|| answer = Some(f())))?;
        answer.ok_or_else(gone)
    }

    /// The part of `run` that does not depend on the result type, so that the channels are compiled once.
    fn finish(&self, work: Work<'_>) -> Result<()> {
        let (over, wait) = channel();
        // SAFETY: the closure borrows from the caller of this function. This call does not return before the closure
        // has run or was dropped, because `over` is dropped after it in every case, so the borrows stay valid.
        let work = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
        self.0.lock().send((work, over)).map_err(|_| gone())?;
        wait.recv().map_or(Ok(()), |never| match never {})
    }
}

pub struct Threaded {
    inner: Box<dyn Interface>,
    worker: Worker,
}

/// Opens an interface on a thread of its own.
pub fn open(name: &str, open: impl FnOnce() -> Result<Box<dyn Interface>> + Send) -> Result<Box<dyn Interface>> {
    let worker = Worker::start(name)?;
    let inner = worker.run(open)??;
    Ok(Box::new(Threaded { inner, worker }))
}

impl Threaded {
    fn run<R: Send>(&self, f: impl FnOnce(&dyn Interface) -> Result<R> + Send) -> Result<R> {
        self.worker.run(|| f(&*self.inner))?
    }

    /// Moves an undo function to the worker thread, because it calls the driver too.
    fn undo(&self, undo: &mut Option<Undo>) {
        if let Some(inner) = undo.take() {
            let worker = self.worker.clone();
            *undo = Some(Box::new(move || drop(worker.run(inner))));
        }
    }
}

impl Interface for Threaded {
    fn iface(&self) -> Iface {
        self.inner.iface()
    }

    fn devices(&self) -> &[DeviceFacts] {
        self.inner.devices()
    }

    fn active(&self, device: u32) -> bool {
        self.worker.run(|| self.inner.active(device)).unwrap_or(false)
    }

    fn detect(&self, addr: u64) -> Result<Option<Allocation>> {
        self.run(|i| i.detect(addr))
    }

    fn identity(&self, addr: u64) -> Option<u64> {
        self.worker.run(|| self.inner.identity(addr)).ok().flatten()
    }

    fn export_dmabuf(&self, addr: u64, len: u64, pcie: bool) -> Result<DmaBuf> {
        self.run(|i| i.export_dmabuf(addr, len, pcie))
    }

    fn export(&self, of: &Allocation) -> Result<Export> {
        self.run(|i| i.export(of))
    }

    fn import(&self, offer: &Offer<'_>, device: Option<u32>) -> Result<Import> {
        let mut import = self.run(|i| i.import(offer, device))?;
        self.undo(&mut import.undo);
        Ok(import)
    }

    fn reach(&self, of: &Allocation, device: Option<u32>) -> Result<u32> {
        self.run(|i| i.reach(of, device))
    }

    unsafe fn copy(&self, device: u32, dir: Dir, to: u64, from: u64, len: usize) -> Result<()> {
        // SAFETY: the caller promises that both sides hold `len` bytes, and this call returns only after the copy.
        self.run(|i| unsafe { i.copy(device, dir, to, from, len) })
    }

    fn flush(&self, device: u32) -> Result<()> {
        self.run(|i| i.flush(device))
    }

    fn stream(&'static self, device: u32) -> Result<Box<dyn Stream>> {
        let inner = self.worker.run(|| self.inner.stream(device))??;
        Ok(Box::new(ThreadedStream { inner: Some(inner), worker: self.worker.clone() }))
    }

    fn pin(&self, addr: u64, len: u64) -> Result<Pinned> {
        let mut pinned = self.run(|i| i.pin(addr, len))?;
        self.undo(&mut pinned.0);
        Ok(pinned)
    }

    fn reaches(&self, device: u32, addr: u64, len: u64) -> bool {
        self.worker.run(|| self.inner.reaches(device, addr, len)).unwrap_or(false)
    }

    fn alloc(&self, device: u32, len: u64) -> Result<u64> {
        self.run(|i| i.alloc(device, len))
    }

    fn free(&self, addr: u64) -> Result<()> {
        self.run(|i| i.free(addr))
    }
}

struct ThreadedStream {
    inner: Option<Box<dyn Stream>>,
    worker: Worker,
}

impl ThreadedStream {
    fn run<R: Send>(&mut self, f: impl FnOnce(&mut dyn Stream) -> Result<R> + Send) -> Result<R> {
        let inner = self.inner.as_deref_mut().ok_or_else(gone)?;
        self.worker.run(|| f(inner))?
    }
}

impl Stream for ThreadedStream {
    unsafe fn post(&mut self, dir: Dir, to: u64, from: u64, len: usize) -> Result<u64> {
        // SAFETY: the caller promises that both sides stay valid until the copy is done.
        self.run(|s| unsafe { s.post(dir, to, from, len) })
    }

    unsafe fn post_list(&mut self, copies: &[StreamCopy], reached: bool, name: u64) -> Result<u64> {
        // SAFETY: the caller promises that both sides of each copy stay valid until it is done.
        self.run(|s| unsafe { s.post_list(copies, reached, name) })
    }

    unsafe fn post_again(&mut self, name: u64) -> Result<Option<u64>> {
        // SAFETY: the caller promises that both sides of each copy posted under the name stay valid until it is done.
        self.run(|s| unsafe { s.post_again(name) })
    }

    fn done(&mut self) -> Result<u64> {
        self.run(|s| s.done())
    }

    fn after(&mut self, stream: u64) -> Result<()> {
        self.run(|s| s.after(stream))
    }
}

impl Drop for ThreadedStream {
    fn drop(&mut self) {
        let inner = self.inner.take();
        // Dropping a stream waits for its copies, and calls the driver.
        let _ = self.worker.run(move || drop(inner));
    }
}
