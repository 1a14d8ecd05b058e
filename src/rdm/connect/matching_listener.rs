// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The passive endpoint of connected endpoints with tags.

use crate::error::{Error, Result};
use crate::prov::info::Info;
use crate::prov::{Listener, Request};
use crate::rdm::wire::hello::{MATCHED_LEN, decode_matched};
use crate::sys::epoll::Poller;

/// Passes on the requests of endpoints with tags, and rejects all others.
pub struct MatchingListener(pub Box<dyn Listener>);

impl Listener for MatchingListener {
    fn address(&self) -> String {
        self.0.address()
    }

    fn cm_data_size(&self) -> usize {
        self.0.cm_data_size() - MATCHED_LEN
    }

    fn listen(&mut self) -> Result<()> {
        self.0.listen()
    }

    fn poll(&mut self) -> (Vec<Box<dyn Request>>, Option<Error>) {
        let (requests, trouble) = self.0.poll();
        let mut callers: Vec<Box<dyn Request>> = Vec::new();
        for request in requests {
            match decode_matched(request.data()).map(|(grant, _)| grant) {
                Ok(grant) => callers.push(Box::new(MatchingRequest { request, grant })),
                Err(why) => {
                    let from = request.from();
                    let sent = request.reject(why.words.as_bytes()).err().map_or(String::new(), |e| format!("; {e}"));
                    crate::log!(Warn, "{from} is rejected: {}{sent}", why.words);
                }
            }
        }
        (callers, trouble)
    }

    fn watch_version(&self) -> u64 {
        self.0.watch_version()
    }

    fn watch(&self, poller: &Poller) -> Result<()> {
        self.0.watch(poller)
    }
}

/// A request, and the grant that was in front of its private data.
pub struct MatchingRequest {
    pub request: Box<dyn Request>,
    pub grant: u64,
}

impl Request for MatchingRequest {
    fn from(&self) -> String {
        self.request.from()
    }

    fn data(&self) -> &[u8] {
        self.request.data().get(MATCHED_LEN..).unwrap_or_default()
    }

    fn adjust(&self, info: &mut Info) {
        self.request.adjust(info);
    }

    fn reject(self: Box<Self>, data: &[u8]) -> Result<()> {
        self.request.reject(data)
    }
}
