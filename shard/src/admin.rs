//! The admin port: probes, metrics, and the durability status.

use axum::{Json, response::IntoResponse as _, routing::get};
use http::StatusCode;
use kindred_proto::etcdserverpb::AlarmType;
use kindred_transport::{
    admin::{Admin, AdminGuard, Check, serve},
    listener::Listener,
    serve::Drain,
};

use crate::{
    apply_loop::call,
    durability::status::DurabilityStatus,
    etcd::Member,
    handle::Handle,
    metrics::{Recorded, render},
    standby::membership::Membership,
};

/// What probes and metrics say, on the admin port and, as with etcd, on the clients' port.
#[must_use]
pub fn probes(member: Member, recorded: &Recorded, drain: &Drain) -> Admin {
    let (live, alarms) = (member.handle.clone(), member.handle.clone());
    let ready_drain = drain.clone();
    let membership = member.membership.clone();
    let (recorder, label) = (recorded.recorder.clone(), recorded.label.clone());
    let loop_check = |handle: &Handle| {
        let result = if handle.is_open() { Ok(()) } else { Err("the apply loop has ended") };
        Check::new("apply_loop", result)
    };
    Admin::new()
        .live(move || vec![loop_check(&live)])
        .ready(move || {
            let stopping = if ready_drain.is_stopping() { Err("stopping") } else { Ok(()) };
            let confirmed = member.is_serving();
            let clock = match (member.membership.serves(), confirmed) {
                (false, _) => Err("everything is refused: this member is not the primary of its store"),
                (true, false) => Err("everything is refused: no router has confirmed it yet"),
                (true, true) => Ok(()),
            };
            let refused = member.handle.refuses().map_or(Ok(()), |what| Err(format!("refused are {what}")));
            vec![
                loop_check(&member.handle),
                Check::new("serving", stopping),
                Check::new("clock", clock),
                Check::new("standby", standby(&member.membership)),
                Check::new("writes", refused),
            ]
        })
        .alarms(move || {
            let handle = alarms.clone();
            async move {
                let asked = handle.call(call::Alarm { action: 0, alarm: 0, member: 0 }).await;
                let raised = asked.map(|(raised, _)| raised).unwrap_or_default();
                let name = |(alarm, _)| AlarmType::try_from(alarm).ok().map(|alarm| alarm.as_str_name());
                raised.into_iter().filter_map(name).map(str::to_owned).collect()
            }
        })
        .metrics(move || {
            recorder
                .as_ref()
                .map(|recorder| render(recorder, &label, membership.serves()))
                .unwrap_or_default()
        })
}

/// Whether the other members may be stopped, as far as this one knows: it serves, or could take over. `/readyz?exclude=clock`
/// asks a member of either role.
fn standby(membership: &Membership) -> Result<(), &'static str> {
    match &membership.following {
        _ if membership.in_doubt() => Err("another member may have been promoted since this one served"),
        _ if membership.serves() => Ok(()),
        None => Err("this member serves nothing, and follows nobody"),
        Some(following) if !following.is_whole() => Err("this standby has no whole copy yet"),
        Some(following) if !following.is_connected() => Err("this standby is not connected to the primary"),
        Some(_) => Ok(()),
    }
}

/// Serves the admin port to the callers that the guard admits, until the drain stops.
pub fn spawn(listener: Listener, guard: AdminGuard, probes: Admin, durability: Handle, drain: &Drain) {
    let routes = probes.routes().route(
        "/api/v1/durability",
        get(move || {
            let handle = durability.clone();
            async move {
                match handle.call(call::ShowDurability {}).await {
                    // Without a data directory all Kinds are in mode `none`.
                    Ok(status) => Json(status.unwrap_or_else(DurabilityStatus::of_memory)).into_response(),
                    Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
                }
            }
        }),
    );
    let serving = drain.clone();
    drain.spawn(async move { serve(listener, routes, &guard, &serving).await });
}
