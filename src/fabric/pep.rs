// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Passive endpoints: they listen, and make connection requests into events of the queue that they are bound to.

use super::info::{EP_RDM, Info};
use super::requests::{self, RequestId};
use super::root::Fabric;
use super::users::ObjectKind;
use super::{Context, check_data};
use crate::error::{Error, Result};
use crate::prov::{EventQueue, PassiveEndpoint};
use crate::sys::epoll::Poller;
use parking_lot::Mutex;
use std::sync::Arc;

/// The event queue that a passive endpoint is bound to.
pub(super) trait Announces: Send + Sync {
    fn events(&self) -> &Arc<EventQueue>;

    /// Detaches a passive endpoint that closes: the queue makes no progress on it any more.
    fn detach_pep(&self, pep: &Arc<Pep>);
}

pub struct Pep {
    pub context: Context,
    pub(super) fabric: Arc<Fabric>,
    prov: PassiveEndpoint,
    eq: Mutex<Option<Arc<dyn Announces>>>,
    /// The info with which the passive endpoint was opened. Each connection request carries a copy to the endpoint that
    /// accepts the request.
    pub(crate) info: Info,
}

impl Pep {
    pub fn open(fabric: &Arc<Fabric>, info: &Info, context: usize) -> Result<Arc<Pep>> {
        fabric.owner.check()?;
        super::info::check(info)?;
        fabric.origin.check(info)?;
        if info.ep_type == EP_RDM {
            return Err(Error::invalid(
                "info->ep_type: connectionless endpoints need no passive endpoint; they accept peers by themselves",
            ));
        }
        let inner = PassiveEndpoint::new(super::info::provider(info)?.open_listener(info)?, context);
        fabric.users.add(ObjectKind::PassiveEndpoint);
        let pep =
            Arc::new(Pep { context: Context::default(), fabric: fabric.clone(), prov: inner, eq: Mutex::new(None), info: info.clone() });
        pep.prov.set_object(Arc::as_ptr(&pep) as usize);
        Ok(pep)
    }

    pub(super) fn bind(&self, eq: Arc<dyn Announces>) -> Result<()> {
        self.prov.bind(eq.events().clone())?;
        *self.eq.lock() = Some(eq);
        Ok(())
    }

    pub fn listen(&self) -> Result<()> {
        self.fabric.owner.check()?;
        self.prov.listen()?;
        crate::log!(Debug, "pep {self:p}: listens on {}", self.address());
        if let Some(eq) = &*self.eq.lock() {
            eq.events().waiter.notify();
        }
        Ok(())
    }

    pub fn address(&self) -> String {
        self.prov.address().to_string()
    }

    pub fn reject(&self, id: RequestId, data: &[u8]) -> Result<()> {
        self.fabric.owner.check()?;
        check_data(data, self.prov.cm_data_size())?;
        let request = requests::take_of(std::ptr::from_ref(self) as usize, id)
            .ok_or_else(|| Error::invalid("handle: unknown connection request: answered already, or of another passive endpoint"))?;
        crate::log!(Debug, "pep {self:p}: rejecting {}", request.from());
        match request.reject(data) {
            Err(e) if e.is_of_gone_peer() => Ok(()),
            rejected => rejected,
        }
    }

    pub fn close(self: &Arc<Self>) -> Result<()> {
        self.fabric.owner.check()?;
        let me = Arc::as_ptr(self) as usize;
        // A wait of another thread may keep this object for longer, so the sockets are closed here and not by the drop.
        // After the close nothing is announced any more, so `forget` below removes all events of this object.
        self.prov.close();
        if let Some(eq) = self.eq.lock().take() {
            eq.events().forget(me);
            // After this call, the request of every event that a reader has taken is in the list of `requests.rs`.
            eq.detach_pep(self);
        }
        requests::forget(me);
        self.fabric.users.remove(ObjectKind::PassiveEndpoint);
        Ok(())
    }

    /// Takes the connection requests that have arrived, and makes each an event. If a request has arrived, `before`
    /// runs before the events are added.
    pub(crate) fn progress(&self, before: impl FnOnce()) {
        let requests = self.prov.poll();
        if !requests.is_empty() {
            requests.iter().for_each(|r| crate::log!(Debug, "pep {:p}: connection request from {}", self, r.from()));
            before();
            self.prov.announce(requests);
        }
    }

    /// A number that changes when the set of descriptors to watch changes.
    pub(crate) fn watch_version(&self) -> u64 {
        self.prov.watch_version()
    }

    pub(crate) fn watch(&self, poller: &Poller) -> Result<()> {
        self.prov.watch(poller)
    }
}
