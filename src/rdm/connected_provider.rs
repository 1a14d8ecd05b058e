// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connected endpoints (type MSG) with tags, as providers to `fabric`. For each provider whose endpoints can be lanes,
//! this file has a provider of the same name, whose endpoints match messages.

use super::limits::{INJECT_SIZE, MAX_MSG, QUEUE_SIZE};
use super::wire::hello::MATCHED_LEN;
use crate::error::{Error, Result, errno};
use crate::prov::info::{Ask, Info, Nic};
use crate::prov::{self, Listener, Offer, Provider, Reach, flags};
use crate::rdm::connect::matching_listener::MatchingListener;
use crate::rdm::memory::lane_domains::Domain;
use crate::rdm::memory::region_quota::program_share;
use crate::sync::serial::Threading;
use std::sync::Arc;

/// The providers whose endpoints can be lanes.
static PROVIDERS: &[MatchedProvider] = &[MatchedProvider("shm"), MatchedProvider("verbs"), MatchedProvider("tcp")];

/// Connected endpoints of one provider, whose messages this layer matches.
struct MatchedProvider(&'static str);

/// The provider that opens endpoints for an info with this provider name.
pub fn get(name: Option<&str>) -> Result<&'static dyn Provider> {
    match PROVIDERS.iter().find(|lane| Some(lane.0) == name) {
        Some(lane) => Ok(lane),
        None => Err(Error::new(errno::ENODEV, format!("info->prov_name: no tagged messages on connected endpoints of {name:?}"))),
    }
}

/// As `prov::candidates`, but with tags wherever the provider can be a lane.
pub fn candidates(ask: &Ask<'_>, wanted: impl Fn(&str) -> bool) -> Vec<Info> {
    prov::candidates(ask, wanted).into_iter().map(with_matching).collect()
}

fn with_matching(info: Info) -> Info {
    match PROVIDERS.iter().find(|lane| Some(lane.0) == info.prov_name.as_deref()).map(MatchedProvider::lane) {
        Some(Ok(lane)) if info.reason.is_none() => with_tags(lane.as_lane(info), lane.reach()),
        _ => info,
    }
}

fn with_tags(lane: Info, reach: Reach) -> Info {
    Info {
        caps: lane.caps | flags::MATCHED,
        msg_order: lane.msg_order & !flags::BEHIND_SENDS,
        inject_size: INJECT_SIZE,
        tx_size: QUEUE_SIZE,
        rx_size: QUEUE_SIZE,
        max_msg_size: MAX_MSG,
        mr_cnt: program_share(reach, lane.mr_cnt),
        // A provider that is not `wanted` gives an empty info, whose `cm_data_size` is 0.
        cm_data_size: lane.cm_data_size.saturating_sub(MATCHED_LEN),
        ..lane
    }
}

impl MatchedProvider {
    fn lane(&self) -> Result<&'static dyn Provider> {
        prov::get(Some(self.0))
    }
}

impl Provider for MatchedProvider {
    fn name(&self) -> &'static str {
        self.0
    }

    fn offer(&self) -> Offer {
        match self.lane() {
            Ok(lane) => lane.offer(),
            Err(why) => Offer { name: self.0, usable: Err(why), facts: Vec::new() },
        }
    }

    fn candidates(&self, ask: &Ask<'_>) -> Vec<Info> {
        candidates(ask, |name| name == self.0)
    }

    fn check_address(&self, address: &str) -> Result<()> {
        self.lane()?.check_address(address)
    }

    fn nic(&self, info: &Info, near: Option<&str>) -> Result<Nic> {
        self.lane()?.nic(info, near)
    }

    fn open_domain(&self, info: &Info, threading: Threading) -> Result<Arc<dyn prov::Domain>> {
        Ok(Arc::new(Domain::open(&[self.lane()?], info, threading)?))
    }

    fn open_listener(&self, info: &Info) -> Result<Box<dyn Listener>> {
        Ok(Box::new(MatchingListener(self.lane()?.open_listener(info)?)))
    }
}
