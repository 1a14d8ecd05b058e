// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connecting, and operations of endpoints: each is over when it was posted, but for receives.

use crate::regions::{Shared, copy};
use gdrfab::error::{Code, Error, Result, errno};
use gdrfab::hmem::Site;
use gdrfab::mr::piece::{load, store};
use gdrfab::mr::{Iov, Paths};
use gdrfab::prov::bind::{Binding, Bindings, Ending, Options, PART, Stage};
use gdrfab::prov::contract::{Endpoint, Listener};
use gdrfab::prov::op::{Common, Dir, RmaIov, measure, total};
use gdrfab::prov::queue::{Completion, Failure};
use gdrfab::prov::report::{PathReport, Refusals, Stats};
use gdrfab::prov::request::{Request, own_request};
use gdrfab::prov::{EventKind, flags};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub const SCHEME: &str = "loopback://";
pub const DATA_MAX: usize = 64;
pub const MAX_MSG: usize = 1 << 30;

/// What the entry of a receive says.
const ARRIVED: u64 = flags::RECV | flags::MSG;

pub fn check_address(address: &str) -> Result<()> {
    match address.strip_prefix(SCHEME) {
        Some(name) if !name.is_empty() => Ok(()),
        _ => Err(Error::invalid(format!("addr: {address:?} is not {SCHEME}NAME"))),
    }
}

/// Listeners of this process, with those that want to connect.
static LISTENERS: Mutex<BTreeMap<String, Vec<Call>>> = Mutex::new(BTreeMap::new());

struct Posted {
    pieces: Vec<Iov>,
    context: usize,
    wanted: bool,
}

#[derive(Default)]
struct State {
    bind: Bindings,
    stage: Stage,
    object: usize,
    peer: Option<Arc<End>>,
    receives: VecDeque<Posted>,
    messages: VecDeque<Vec<u8>>,
    options: Options,
    stats: Stats,
}

impl State {
    /// Messages that came go into receives, as long as the queue has room.
    fn deliver(&mut self) {
        while !self.messages.is_empty() && !self.receives.is_empty() && self.bind.rx.as_ref().is_none_or(|q| q.has_room()) {
            let (Some(bytes), Some(to)) = (self.messages.pop_front(), self.receives.pop_front()) else { return };
            let room = total(&to.pieces).unwrap_or(usize::MAX);
            let len = bytes.len().min(room);
            let stored = store(Site::HOST, &to.pieces, 0, &bytes[..len]);
            let lost = match (stored, bytes.len() - len) {
                (Ok(()), 0) => None,
                (Ok(()), olen) => Some(Failure { error: Error::reported(Code::Trunc), olen, block: 0 }),
                (Err(error), _) => Some(Failure { error, olen: 0, block: 0 }),
            };
            let entry = Completion { context: to.context, flags: ARRIVED, len, ..Completion::default() };
            self.stats.recvs += 1;
            self.bind.received(None, entry, to.wanted, lost);
        }
    }

    /// The connection is over; this side's receives fail.
    fn end(&mut self, code: Code, number: i32) {
        self.stage = Stage::Over;
        for posted in std::mem::take(&mut self.receives) {
            let entry = Completion { context: posted.context, flags: ARRIVED, ..Completion::default() };
            self.bind.spoiled(None, entry, Failure { error: Error::coded(number, code, "the connection is over"), olen: 0, block: 0 });
        }
    }
}

struct End {
    regions: Shared,
    context: usize,
    state: Mutex<State>,
}

impl End {
    fn tell(&self, kind: EventKind, data: &[u8], error: Option<Error>) {
        let s = self.state.lock();
        s.bind.event(kind, s.object, self.context, data.to_vec(), error);
    }
}

/// Who wants to connect, until it is answered.
struct Call {
    from: Option<Arc<End>>,
    data: Vec<u8>,
}

impl Call {
    fn refuse(&mut self, data: &[u8]) {
        if let Some(end) = self.from.take() {
            end.state.lock().stage = Stage::Over;
            end.tell(EventKind::Connected, data, Some(Error::coded(errno::ECONNREFUSED, Code::Rejected, "the peer said no")));
        }
    }
}

impl Request for Call {
    fn from(&self) -> String {
        SCHEME.into()
    }

    fn data(&self) -> &[u8] {
        &self.data
    }

    fn reject(mut self: Box<Self>, data: &[u8]) -> Result<()> {
        self.refuse(data);
        Ok(())
    }
}

/// What is dropped without an answer is rejected.
impl Drop for Call {
    fn drop(&mut self) {
        self.refuse(&[]);
    }
}

/// Listens at `address` once it is told to.
pub struct Waits {
    pub address: String,
    pub listens: bool,
}

impl Listener for Waits {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn cm_data_size(&self) -> usize {
        DATA_MAX
    }

    fn listen(&mut self) -> Result<()> {
        let mut all = LISTENERS.lock();
        if all.contains_key(&self.address) {
            return Err(Error::new(errno::EADDRINUSE, format!("{}: somebody listens there", self.address)));
        }
        all.insert(self.address.clone(), Vec::new());
        self.listens = true;
        Ok(())
    }

    fn poll(&mut self) -> (Vec<Box<dyn Request>>, Option<Error>) {
        let calls = if self.listens { LISTENERS.lock().get_mut(&self.address).map(std::mem::take) } else { None };
        (calls.into_iter().flatten().map(|call| Box::new(call) as Box<dyn Request>).collect(), None)
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        if self.listens {
            // Outside of the lock, which rejecting them does not take.
            let calls = LISTENERS.lock().remove(&self.address);
            drop(calls);
        }
    }
}

pub struct Ep(Arc<End>);

impl Ep {
    pub fn new(regions: Shared, context: usize) -> Ep {
        Ep(Arc::new(End { regions, context, state: Mutex::default() }))
    }

    fn peer(&self, s: &State) -> Result<Arc<End>> {
        let found = s.peer.as_ref().filter(|_| s.stage == Stage::Connected);
        found.cloned().ok_or_else(|| Error::fixed(errno::ENOTCONN, "ep: not connected"))
    }

    /// Admits an operation of this side: its entry is reserved.
    fn admit(&self, kind: u64, local: &[Iov], c: &Common) -> Result<(Arc<End>, Ending)> {
        let s = self.0.state.lock();
        let peer = self.peer(&s)?;
        let len = measure(local, MAX_MSG)?;
        let wanted = s.bind.wants_entry(c.flags);
        if !s.bind.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        Ok((peer, s.bind.place(Ending { context: c.context, kind, len, wanted, part: c.flags & PART != 0, ..Ending::default() })))
    }

    fn finish(&self, end: &Ending, result: Result<()>) {
        let mut s = self.0.state.lock();
        match result {
            Ok(()) => {
                match end.kind & flags::RMA {
                    0 => s.stats.sends += 1,
                    _ => s.stats.moved(Paths::DIRECT, end.len),
                }
                s.bind.succeed(end);
            }
            Err(why) => {
                s.stats.errors += 1;
                s.bind.fail(end, why);
            }
        }
    }

    fn leave(&self) {
        let mut s = self.0.state.lock();
        s.end(Code::Canceled, errno::ECANCELED);
        let peer = s.peer.take();
        drop(s);
        if let Some(peer) = peer {
            peer.state.lock().end(Code::PeerGone, errno::ECONNRESET);
            peer.tell(EventKind::Shutdown, &[], None);
        }
    }
}

impl Endpoint for Ep {
    fn set_object(&self, object: usize) {
        self.0.state.lock().object = object;
    }

    fn cm_data_size(&self) -> usize {
        DATA_MAX
    }

    fn bind(&self, what: Binding) -> Result<()> {
        self.0.state.lock().bind.bind(what)
    }

    fn enable(&self, _op_flags: u64) -> Result<()> {
        let mut s = self.0.state.lock();
        s.bind.check_can_enable()?;
        s.bind.enabled = true;
        s.stage = Stage::Enabled;
        Ok(())
    }

    fn connect(&self, address: &str, data: &[u8]) -> Result<()> {
        check_address(address)?;
        let mut s = self.0.state.lock();
        s.bind.check_can_connect(s.stage)?;
        let mut all = LISTENERS.lock();
        let calls = all.get_mut(address).ok_or_else(|| Error::new(errno::ECONNREFUSED, format!("{address}: nobody listens")))?;
        calls.push(Call { from: Some(self.0.clone()), data: data.to_vec() });
        s.stage = Stage::Connected;
        Ok(())
    }

    fn accept(&self, request: Box<dyn Request>, data: &[u8]) -> Result<()> {
        let mut call: Call = own_request(request)?;
        let mut s = self.0.state.lock();
        s.bind.check_can_connect(s.stage)?;
        let Some(peer) = call.from.take() else { return Err(Error::fixed(errno::EOPBADSTATE, "info->handle: answered already")) };
        s.stage = Stage::Connected;
        s.peer = Some(peer.clone());
        drop(s);
        peer.state.lock().peer = Some(self.0.clone());
        peer.tell(EventKind::Connected, data, None);
        self.0.tell(EventKind::Connected, &[], None);
        Ok(())
    }

    fn address(&self) -> Result<String> {
        Ok(SCHEME.into())
    }

    fn peer_address(&self) -> Result<String> {
        let s = self.0.state.lock();
        self.peer(&s).map(|_| SCHEME.into())
    }

    fn shutdown(&self) -> Result<()> {
        self.peer(&self.0.state.lock())?;
        self.leave();
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.leave();
        self.0.state.lock().bind = Bindings::default();
        Ok(())
    }

    fn rma(&self, dir: Dir, local: &[Iov], remote: &[RmaIov], c: &Common, _descs: &[u64]) -> Result<()> {
        if remote.iter().map(|r| r.len).sum::<usize>() != measure(local, MAX_MSG)? {
            return Err(Error::invalid("rma_iov: not as long as the local pieces"));
        }
        let kind = flags::RMA | if dir == Dir::Write { flags::WRITE } else { flags::READ };
        let (peer, end) = self.admit(kind, local, c)?;
        let result = copy(dir, local, &peer.regions.lock(), remote);
        let data = (result.is_ok() && c.flags & flags::REMOTE_CQ_DATA != 0).then_some(c.data);
        self.finish(&end, result);
        if let Some(data) = data {
            peer.state.lock().bind.remote_data(end.len, data);
        }
        Ok(())
    }

    fn send(&self, local: &[Iov], c: &Common, _descs: &[u64]) -> Result<()> {
        let (peer, end) = self.admit(flags::SEND | flags::MSG, local, c)?;
        let mut bytes = vec![0; end.len];
        let result = load(Site::HOST, local, 0, &mut bytes);
        if result.is_ok() {
            let mut theirs = peer.state.lock();
            theirs.messages.push_back(bytes);
            theirs.deliver();
        }
        self.finish(&end, result);
        Ok(())
    }

    fn recv(&self, local: &[Iov], c: &Common, _descs: &[u64]) -> Result<()> {
        let mut s = self.0.state.lock();
        let wanted = s.bind.wants_receive(c.flags);
        s.receives.push_back(Posted { pieces: local.to_vec(), context: c.context, wanted });
        s.deliver();
        Ok(())
    }

    fn cancel(&self, context: usize) -> Result<()> {
        let mut s = self.0.state.lock();
        let at = s.receives.iter().position(|p| p.context == context).ok_or(Error::fixed(errno::ENOENT, "context: no such receive"))?;
        s.receives.remove(at);
        let entry = Completion { context, flags: ARRIVED, ..Completion::default() };
        s.bind.spoiled(None, entry, Failure { error: Error::coded(errno::ECANCELED, Code::Canceled, "canceled"), olen: 0, block: 0 });
        Ok(())
    }

    /// Every post does its work at once; only what found no room in the queue waits.
    fn progress(&self, _force: bool) {
        self.0.state.lock().deliver();
    }

    fn options(&self) -> Options {
        self.0.state.lock().options
    }

    fn set_options(&self, change: &mut dyn FnMut(&mut Options)) {
        change(&mut self.0.state.lock().options);
    }

    fn report(&self, _key: u64, _desc: u64) -> Result<PathReport> {
        let refusals = Refusals { direct: None, ..Refusals::refused("the peer is in this process") };
        let paths = refusals.possible();
        Ok(PathReport { path: paths.best(), paths, offered: paths, text: refusals.lines(paths.best()), refusals })
    }

    fn stats(&self) -> Stats {
        self.0.state.lock().stats
    }
}
