//! `kindred leave`: the way to a stock etcd.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use kindred_database::{etcd, spool::Spool};
use kindred_partition_config::ids::{Revision, SLOT_BITS};

use crate::admin::output;

pub mod args;

use args::PrepareArgs;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Writes the snapshot for the etcd.
///
/// # Errors
/// When the file cannot be written.
pub fn prepare(args: &PrepareArgs) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    let then = now + DAY * args.days;
    let revision = Revision(i64::try_from(then.as_micros()).context("--days")? << SLOT_BITS);
    let shown = args.file.display();
    let file = File::create_new(&args.file).with_context(|| shown.to_string())?;
    let nothing = Spool::new().and_then(Spool::finish).context("a temporary file")?;
    let mut out = BufWriter::new(&file);
    let written = etcd::write(&nothing, &[], revision, |_| &mut out);
    written.and_then(|()| out.flush()).and_then(|()| file.sync_all()).with_context(|| shown.to_string())?;
    output::print(&format!(
        "{shown}: an empty etcd at revision {}, for {} days\n\
         begin each member with it: etcdutl snapshot restore {shown} --data-dir=…\n",
        revision.get(),
        args.days
    ))
    .map_err(Into::into)
}
