// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A [`Stream`] for drivers that have no streams of their own, but marks, which are signals or events. A copy sets its
//! mark when it is done, and waits for the mark of the copy before it, so the copies run in order.

use super::{Dir, Stream};
use crate::error::{Error, Result, errno};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::time::Duration;

/// Time for which a failed or dropped stream waits for each copy that still runs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The arguments of one copy.
#[derive(Clone, Copy)]
pub struct CopyArgs {
    pub dir: Dir,
    pub to: u64,
    pub from: u64,
    pub len: usize,
}

/// Result of starting a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Started {
    /// The copy runs, and will set its mark.
    Flying,
    /// The copy is done, and so are all copies before it. The mark was not used.
    Done,
}

/// The driver's part of a [`Chain`].
pub trait Engine: Send {
    type Mark: Copy + Send;

    /// Makes a mark that is not set.
    fn new_mark(&mut self) -> Result<Self::Mark>;

    /// Resets a mark that was set and that no copy waits for.
    fn reset(&mut self, mark: Self::Mark) -> Result<()>;

    /// Starts `copy`, to run after the copy with the mark `after`. If this fails, no copy was started.
    ///
    /// # Safety
    /// Both sides stay valid until the copy is done.
    unsafe fn start(&mut self, copy: CopyArgs, after: Option<Self::Mark>, mark: Self::Mark) -> Result<Started>;

    /// True if the mark is set; the error if its copy failed.
    fn finished(&mut self, mark: Self::Mark) -> Result<bool>;

    /// Waits until the mark is set or its copy failed. False if neither happened within `limit`.
    fn wait(&mut self, mark: Self::Mark, limit: Duration) -> bool;

    /// Sets the mark of a failed copy, for drivers where the copies that wait for this mark would otherwise wait for
    /// ever.
    fn release_waiters(&mut self, _mark: Self::Mark) {}

    fn destroy(&mut self, mark: Self::Mark);
}

/// Copies in order, each with a mark; see [`Stream`].
pub struct Chain<E: Engine> {
    engine: ManuallyDrop<E>,
    /// Marks of copies not yet known to be done, oldest first.
    flying: VecDeque<E::Mark>,
    /// Mark of the last copy known to be done. The mark is not reused yet, because the next copy may not have read it.
    last_done: Option<E::Mark>,
    free: Vec<E::Mark>,
    posted: u64,
    done: u64,
    failure: Option<Error>,
    /// True if a copy still ran after `PATIENCE`. The engine is then never dropped, because the copy may use it.
    still_running: bool,
}

impl<E: Engine> Chain<E> {
    pub fn new(engine: E) -> Self {
        Chain {
            engine: ManuallyDrop::new(engine),
            flying: VecDeque::new(),
            last_done: None,
            free: Vec::new(),
            posted: 0,
            done: 0,
            failure: None,
            still_running: false,
        }
    }

    /// Records that the oldest copy is done, and reuses the mark of the copy before it.
    fn retire(&mut self, mark: E::Mark) {
        self.done += 1;
        if let Some(old) = self.last_done.replace(mark) {
            match self.engine.reset(old) {
                Ok(()) => self.free.push(old),
                Err(_) => self.engine.destroy(old),
            }
        }
    }

    /// Waits until all posted copies are done, in place of a copy of 0 bytes. Such a copy is never given to the driver,
    /// because drivers differ in whether it sets its mark.
    fn wait_for_all(&mut self) -> Result<()> {
        while let Some(mark) = self.flying.back().copied() {
            self.engine.wait(mark, Duration::from_secs(1));
            self.done()?;
        }
        Ok(())
    }

    /// Waits for the copies that still run. If one does not end, all remaining marks are left to the driver for ever.
    fn drain(&mut self) {
        while let Some(mark) = self.flying.pop_front() {
            if !self.engine.wait(mark, PATIENCE) {
                self.still_running = true;
                return self.flying.clear();
            }
            // Failed or not, this copy no longer runs; the copies behind it may start now.
            self.engine.release_waiters(mark);
            self.free.push(mark);
        }
    }

    fn fail(&mut self, e: Error) -> Error {
        let e = e.context(format!("copy {} of {}", self.done + 1, self.posted));
        self.drain();
        let e = match self.still_running {
            true => Error::new(errno::EIO, format!("{e}; a copy still runs after {} s and may access its memory", PATIENCE.as_secs())),
            false => e,
        };
        self.failure = Some(e.clone());
        e
    }
}

impl<E: Engine> Stream for Chain<E> {
    unsafe fn post(&mut self, dir: Dir, to: u64, from: u64, len: usize) -> Result<u64> {
        if let Some(e) = &self.failure {
            return Err(e.clone());
        }
        if len == 0 {
            self.wait_for_all()?;
            self.posted += 1;
            self.done = self.posted;
            return Ok(self.posted);
        }
        let mark = match self.free.pop() {
            Some(mark) => mark,
            None => self.engine.new_mark()?,
        };
        let after = self.flying.back().copied();
        // SAFETY: the caller promises that both sides stay valid until the copy is done.
        match unsafe { self.engine.start(CopyArgs { dir, to, from, len }, after, mark) } {
            Ok(Started::Flying) => {
                self.posted += 1;
                self.flying.push_back(mark);
            }
            Ok(Started::Done) => {
                self.free.push(mark);
                while let Some(before) = self.flying.pop_front() {
                    self.retire(before);
                }
                self.posted += 1;
                self.done = self.posted;
            }
            Err(e) => {
                self.free.push(mark);
                return Err(e);
            }
        }
        Ok(self.posted)
    }

    fn done(&mut self) -> Result<u64> {
        if let Some(e) = &self.failure {
            return Err(e.clone());
        }
        while let Some(mark) = self.flying.front().copied() {
            match self.engine.finished(mark) {
                Ok(true) => {
                    self.flying.pop_front();
                    self.retire(mark);
                }
                Ok(false) => break,
                Err(e) => return Err(self.fail(e)),
            }
        }
        Ok(self.done)
    }
}

impl<E: Engine> Drop for Chain<E> {
    fn drop(&mut self) {
        self.drain();
        if self.still_running {
            return;
        }
        for mark in self.free.drain(..).chain(self.last_done.take()) {
            self.engine.destroy(mark);
        }
        // SAFETY: dropped only here, and not used again.
        unsafe { ManuallyDrop::drop(&mut self.engine) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// The marks are indexes of `marks`: 0 is armed, 1 is set, 2 is failed. The test sets them.
    #[derive(Default)]
    struct Book {
        marks: Vec<u8>,
        starts: Vec<(usize, Option<usize>)>,
        destroyed: usize,
        gone: bool,
    }

    struct Paper(Arc<Mutex<Book>>, Started);

    impl Engine for Paper {
        type Mark = usize;

        fn new_mark(&mut self) -> Result<usize> {
            let marks = &mut self.0.lock().unwrap().marks;
            marks.push(0);
            Ok(marks.len() - 1)
        }

        fn reset(&mut self, mark: usize) -> Result<()> {
            assert_eq!(std::mem::replace(&mut self.0.lock().unwrap().marks[mark], 0), 1);
            Ok(())
        }

        unsafe fn start(&mut self, _copy: CopyArgs, after: Option<usize>, mark: usize) -> Result<Started> {
            let mut book = self.0.lock().unwrap();
            assert_eq!(book.marks[mark], 0, "a used mark was given out");
            book.starts.push((mark, after));
            Ok(self.1)
        }

        fn finished(&mut self, mark: usize) -> Result<bool> {
            match self.0.lock().unwrap().marks[mark] {
                2 => Err(Error::fixed(errno::EIO, "bad copy")),
                state => Ok(state == 1),
            }
        }

        fn wait(&mut self, mark: usize, _limit: Duration) -> bool {
            let state = &mut self.0.lock().unwrap().marks[mark];
            *state = (*state).max(1);
            true
        }

        fn destroy(&mut self, _mark: usize) {
            self.0.lock().unwrap().destroyed += 1;
        }
    }

    impl Drop for Paper {
        fn drop(&mut self) {
            self.0.lock().unwrap().gone = true;
        }
    }

    fn post(chain: &mut Chain<Paper>) -> u64 {
        // SAFETY: the fake engine copies nothing, so no address is accessed.
        unsafe { chain.post(Dir::Within, 1, 2, 3) }.unwrap()
    }

    #[test]
    fn each_waits_for_the_one_before_and_marks_come_back_late() {
        let book = Arc::new(Mutex::new(Book::default()));
        let mut chain = Chain::new(Paper(book.clone(), Started::Flying));
        assert_eq!((post(&mut chain), post(&mut chain), chain.done().unwrap()), (1, 2, 0));
        book.lock().unwrap().marks[1] = 1;
        assert_eq!(chain.done().unwrap(), 0, "the second cannot be reported before the first");
        book.lock().unwrap().marks[0] = 1;
        assert_eq!(chain.done().unwrap(), 2);
        assert_eq!((post(&mut chain), post(&mut chain)), (3, 4));
        assert_eq!(book.lock().unwrap().starts, [(0, None), (1, Some(0)), (0, None), (2, Some(0))]);
        drop(chain);
        let book = book.lock().unwrap();
        assert_eq!((book.destroyed, book.marks.len(), book.gone), (3, 3, true));
    }

    #[test]
    fn an_error_ends_it() {
        let book = Arc::new(Mutex::new(Book::default()));
        let mut chain = Chain::new(Paper(book.clone(), Started::Flying));
        post(&mut chain);
        post(&mut chain);
        book.lock().unwrap().marks[0] = 2;
        assert!(chain.done().unwrap_err().words.contains("copy 1 of 2"));
        assert!(chain.done().is_err());
        // SAFETY: nothing is copied.
        assert!(unsafe { chain.post(Dir::Within, 1, 2, 3) }.is_err());
        drop(chain);
        assert_eq!(book.lock().unwrap().destroyed, 2);
    }

    #[test]
    fn a_copy_may_be_done_at_once() {
        let book = Arc::new(Mutex::new(Book::default()));
        let mut chain = Chain::new(Paper(book, Started::Done));
        assert_eq!((post(&mut chain), post(&mut chain), chain.done().unwrap()), (1, 2, 2));
    }

    #[test]
    fn a_copy_of_nothing_waits_for_those_before() {
        let book = Arc::new(Mutex::new(Book::default()));
        let mut chain = Chain::new(Paper(book.clone(), Started::Flying));
        post(&mut chain);
        book.lock().unwrap().marks[0] = 1;
        // SAFETY: the fake engine copies nothing, so no address is accessed.
        assert_eq!(unsafe { chain.post(Dir::Within, 1, 2, 0) }.unwrap(), 2);
        assert_eq!((chain.done().unwrap(), book.lock().unwrap().starts.len()), (2, 1));
    }
}
