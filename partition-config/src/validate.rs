//! Turns the model into a partition map, or reports all errors by field.
//!
//! The ranges of a configured Kind must cover it completely. A gap is an error: filling it from the default store
//! would put keys on another store than the writer of the configuration meant. Kinds without configs belong to the
//! default store.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use crate::{
    errors::Errors,
    history::{HistoryBounds, HistoryMax},
    ids::{Epoch, Slot, StoreName},
    key::{Key, KeyRange},
    kind::{KindPrefix, KindScheme},
    map::{Partition, PartitionMap, Placement, StoreIdx},
    model::{
        DataPartitionConfig, Durability, KindredConfig, LimitsConfig, StandbyConfig, StoreConfig, StoreType,
    },
};

mod placement;

/// The maximum length of a Unix socket's path in its address, without the terminating zero.
const UNIX_PATH_BYTES_MAX: usize = 107;
/// The maximum number of partition configs: the cluster's state is one value of the meta store, and an etcd takes 1.5 MiB.
pub const PARTITIONS_MAX: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The field's path, such as `partitions[2].rangeEnd`.
    pub path: String,
    pub message: String,
    pub what_to_do: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.path, self.message, self.what_to_do)
    }
}

impl std::error::Error for FieldError {}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validated {
    pub scheme: KindScheme,
    /// The configured stores; a [`StoreIdx`] is an index in this list.
    pub stores: Vec<StoreConfig>,
    /// The store of every key that no partition holds.
    pub default: StoreIdx,
    pub map: PartitionMap,
    /// The settings of each configured Kind, sorted by prefix.
    pub kinds: Vec<KindSettings>,
}

/// The settings that all partitions of a Kind share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindSettings {
    pub kind: KindPrefix,
    /// `None` leaves the choice to the shard.
    pub durability: Option<Durability>,
    pub limits: LimitsConfig,
    pub history: HistoryBounds,
}

pub type FieldErrors = Errors<FieldError>;

impl FieldErrors {
    pub fn add(
        &mut self,
        path: impl Into<String>,
        message: impl Into<String>,
        what_to_do: impl Into<String>,
    ) {
        self.push(FieldError { path: path.into(), message: message.into(), what_to_do: what_to_do.into() });
    }
}

/// Partitions to check against stores that are already checked.
pub(crate) struct Input<'c> {
    pub(crate) scheme: &'c KindScheme,
    /// All stores; a [`StoreIdx`] is an index in this list.
    pub(crate) stores: &'c [StoreConfig],
    /// The stores that a partition may name.
    pub(crate) names: &'c HashMap<StoreName, StoreIdx>,
    /// Stores that exist but may not be named.
    pub(crate) draining: &'c [StoreName],
    pub(crate) partitions: &'c [DataPartitionConfig],
    /// Each partition's path in an error.
    pub(crate) paths: &'c [String],
    /// The map in use. New ring tables keep what they can of it; without one they depend on the stores' names
    /// alone.
    pub(crate) in_use: Option<&'c PartitionMap>,
}

/// Checks the configuration and builds the map. Every partition gets epoch 1.
///
/// # Errors
/// Every error in the configuration.
pub fn validate(config: &KindredConfig) -> Result<Validated, Vec<FieldError>> {
    let mut errors = FieldErrors::default();
    let scheme = KindScheme::new(&config.etcd_prefix);
    let path = |i: usize| format!("stores[{i}]");
    let names = stores(&config.stores, path, &mut errors);
    members_apart(&config.stores, path, &mut errors);
    let default = names.get(&config.default).copied();
    if default.is_none() {
        unknown_store("default".into(), &config.default, &[], &mut errors);
    }
    let paths: Vec<_> = (0..config.partitions.len()).map(|i| format!("partitions[{i}]")).collect();
    for (config, path) in config.partitions.iter().zip(&paths) {
        check_history_max(config, path, &mut errors);
    }
    let input = Input {
        scheme: &scheme,
        stores: &config.stores,
        names: &names,
        draining: &[],
        partitions: &config.partitions,
        paths: &paths,
        in_use: None,
    };
    match (place(&input, default, &mut errors), default) {
        (Some((map, kinds)), Some(default)) => {
            Ok(Validated { scheme, stores: config.stores.clone(), default, map, kinds })
        }
        _ => Err(errors.into()),
    }
}

/// Checks the partitions and builds the map. Every partition gets epoch 1. `None` if there is no default store or
/// `errors` is not empty, whoever added them.
pub(crate) fn place(
    input: &Input<'_>,
    default: Option<StoreIdx>,
    errors: &mut FieldErrors,
) -> Option<(PartitionMap, Vec<KindSettings>)> {
    if input.partitions.len() > PARTITIONS_MAX {
        errors.add(
            "partitions",
            format!(
                "there are {}, and at most {PARTITIONS_MAX} fit in the meta store",
                input.partitions.len()
            ),
            "spread a Kind by a ring of stores, which is one config, or make fewer ranges",
        );
        return None;
    }
    let kinds = ranges(input, errors);
    let settings: Vec<_> =
        kinds.iter().map(|(kind, ranges)| whole_kind(kind, ranges, input.scheme, errors)).collect();
    for (kind, ranges) in &kinds {
        placement::joins_no_etcd(kind, ranges, input.stores, input.scheme, errors);
    }
    let (Some(default), true) = (default, errors.is_empty()) else { return None };
    let partitions = kinds.into_iter().flat_map(|(kind, ranges)| partitions_of(&kind, &ranges)).collect();
    match PartitionMap::filled(partitions, default, Epoch(1)) {
        Ok(map) => Some((map, settings)),
        Err(error) => {
            // Unreachable if the checks above are complete, but a map must never be built unchecked.
            errors.add("partitions", error.to_string(), "correct the ranges");
            None
        }
    }
}

/// Refuses a `historyMax` that says nothing. Existing documents may have any, since earlier versions ignored it: there
/// it has no effect.
pub(crate) fn check_history_max(config: &DataPartitionConfig, path: &str, errors: &mut FieldErrors) {
    if let Some(Err(message)) = config.history_max.as_deref().map(str::parse::<HistoryMax>) {
        let what_to_do = "write an age such as 10m (s, m or h; at least 10s), or a size such as 512Mi (Ki, Mi, Gi, k, M or G)";
        errors.add(format!("{path}.historyMax"), message, what_to_do);
    }
}

/// Checks the list of stores and returns the index of each name.
pub(crate) fn stores(
    stores: &[StoreConfig],
    path: impl Fn(usize) -> String + Copy,
    errors: &mut FieldErrors,
) -> HashMap<StoreName, StoreIdx> {
    let mut names = HashMap::new();
    let mut slots: HashMap<u32, &StoreName> = HashMap::new();
    if stores.is_empty() {
        errors.add("stores", "there is no store", "add one, such as {name: default, slot: 1}");
    }
    for (i, store) in stores.iter().enumerate() {
        let path = path(i);
        let name = &store.name;
        if !is_store_name(&name.0) {
            let message = format!("{:?} is not a name of a store", name.0);
            errors.add(format!("{path}.name"), message, "use 1 to 63 lower case letters, digits and dashes");
        }
        match u16::try_from(i) {
            Err(_) => errors.add(path.as_str(), "too many stores", "remove some"),
            Ok(_) if names.contains_key(name) => {
                let message = format!("another store is called {:?}, too", name.0);
                errors.add(format!("{path}.name"), message, "rename one of them");
            }
            Ok(i) => {
                names.insert(name.clone(), StoreIdx(i));
            }
        }
        slot(store, &path, &mut slots, errors);
        if store.store_type == StoreType::Etcd && store.endpoints.is_empty() {
            errors.add(format!("{path}.endpoints"), "a stock etcd needs an endpoint", "add its client URLs");
        }
        endpoints(&store.endpoints, &path, errors);
        if store.adopting && store.store_type != StoreType::Etcd {
            let message = "only a stock etcd is adopted";
            errors.add(format!("{path}.adopting"), message, "leave the field out, or set type: etcd");
        }
        if let Some(standby) = &store.standby {
            standbys(store, standby, &path, errors);
        }
    }
    names
}

/// Refuses a member's address that another store uses: the one store would take the other's process for its own (R21).
pub(crate) fn members_apart(
    stores: &[StoreConfig],
    path: impl Fn(usize) -> String,
    errors: &mut FieldErrors,
) {
    fn standbys(store: &StoreConfig) -> impl Iterator<Item = &str> {
        let standby = store.standby.iter().flat_map(|standby| &standby.endpoints);
        standby.map(|endpoint| endpoint.trim_end_matches('/'))
    }
    for (i, store) in stores.iter().enumerate() {
        for (j, other) in stores.iter().enumerate().filter(|(j, _)| *j != i) {
            let served = other.endpoints.iter().map(|endpoint| endpoint.trim_end_matches('/'));
            // If two stores name the same standby, the error is at the later store.
            let of_other = standbys(other).filter(|_| j < i).chain(served);
            let used: Vec<&str> = of_other.collect();
            for (at, endpoint) in standbys(store).enumerate().filter(|(_, endpoint)| used.contains(endpoint))
            {
                errors.add(
                    format!("{}.standby.endpoints[{at}]", path(i)),
                    format!("{endpoint:?} is an address of store {:?}, too", other.name.0),
                    "each member is a process of its own: name the one that was started with this store's --name and --slot",
                );
            }
        }
    }
}

fn endpoints(endpoints: &[String], path: &str, errors: &mut FieldErrors) {
    for (j, endpoint) in endpoints.iter().enumerate() {
        let path = format!("{path}.endpoints[{j}]");
        if endpoint.is_empty() || endpoint.contains(char::is_whitespace) {
            let message = format!("{endpoint:?} is not an endpoint");
            errors.add(path, message, "write such as http://127.0.0.1:2379");
        } else if let Some(socket) = unix_path(endpoint) {
            unix_endpoint(endpoint, socket, path, errors);
        }
    }
}

/// The most standbys of a store.
const STANDBYS_MAX: usize = 2;

fn standbys(store: &StoreConfig, standby: &StandbyConfig, path: &str, errors: &mut FieldErrors) {
    let path = format!("{path}.standby");
    if store.store_type == StoreType::Etcd {
        errors.add(path, "a stock etcd has members of its own", "leave it out, and name them in endpoints");
        return;
    }
    if standby.endpoints.is_empty() || standby.endpoints.len() > STANDBYS_MAX {
        let message = format!("{} addresses: a shard has one or two standbys", standby.endpoints.len());
        errors.add(format!("{path}.endpoints"), message, "name one for each, or leave out standby");
    }
    endpoints(&standby.endpoints, &path, errors);
    let mut known: Vec<&String> = store.endpoints.iter().collect();
    for (j, endpoint) in standby.endpoints.iter().enumerate() {
        if known.contains(&endpoint) {
            let message = format!("{endpoint:?} is another member's address, too");
            errors.add(format!("{path}.endpoints[{j}]"), message, "each member is a process of its own");
        }
        known.push(endpoint);
    }
}

/// The path of a Unix socket URL in etcd's notation: `unix:///path` or `unix:path`; `unixs` is the same with TLS.
fn unix_path(endpoint: &str) -> Option<&str> {
    let path = endpoint.strip_prefix("unix:").or_else(|| endpoint.strip_prefix("unixs:"))?;
    Some(path.strip_prefix("//").unwrap_or(path))
}

fn unix_endpoint(endpoint: &str, socket: &str, path: String, errors: &mut FieldErrors) {
    if socket.is_empty() {
        let message = format!("{endpoint:?} names no socket");
        errors.add(path, message, "write such as unix:///run/kindred/pods.sock");
    } else if socket.len() > UNIX_PATH_BYTES_MAX {
        let message = format!(
            "the path of {endpoint:?} has {} bytes, and a Unix socket's at most {UNIX_PATH_BYTES_MAX}",
            socket.len()
        );
        errors.add(path, message, "choose a shorter one");
    }
}

fn slot<'s>(
    store: &'s StoreConfig,
    path: &str,
    slots: &mut HashMap<u32, &'s StoreName>,
    errors: &mut FieldErrors,
) {
    let path = format!("{path}.slot");
    let free = format!("choose a number from 1 to {} that no store ever had", Slot::MAX);
    match store.slot {
        None if store.store_type == StoreType::Shard => errors.add(path, "a shard needs a slot", free),
        None => {}
        Some(0) => errors.add(path, "slot 0 is the meta store's", free),
        Some(slot) if slot > u32::from(Slot::MAX) => {
            errors.add(path, format!("slot {slot} does not fit into a revision"), free);
        }
        Some(slot) => {
            if let Some(other) = slots.insert(slot, &store.name) {
                errors.add(path, format!("slot {slot} is the slot of store {:?}, too", other.0), free);
            }
        }
    }
}

fn is_store_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn unknown_store(path: String, name: &StoreName, draining: &[StoreName], errors: &mut FieldErrors) {
    if draining.contains(name) {
        errors.add(path, format!("store {:?} is being drained", name.0), "name another one");
        return;
    }
    errors.add(
        path,
        format!("there is no store {:?}", name.0),
        "add it to stores, or name one that is there",
    );
}

/// A valid configured range of a Kind, and the field that it came from.
struct Range<'c> {
    path: String,
    config: &'c DataPartitionConfig,
    start: Key,
    /// `None` for the end of the Kind.
    end: Option<Key>,
    placement: Placement,
    durability: Option<Durability>,
}

/// Checks each partition on its own, and sorts the valid ranges by Kind and start.
fn ranges<'c>(input: &Input<'c>, errors: &mut FieldErrors) -> BTreeMap<KindPrefix, Vec<Range<'c>>> {
    let mut kinds: BTreeMap<KindPrefix, Vec<Range<'c>>> = BTreeMap::new();
    let mut objects: HashMap<&str, &String> = HashMap::new();
    for (config, path) in input.partitions.iter().zip(input.paths) {
        let name = config.metadata.name.as_str();
        if name.is_empty() {
            errors.add(format!("{path}.metadata.name"), "the name is empty", "give it a name");
        } else if let Some(other) = objects.insert(name, path) {
            let message = format!("{other} is called {name:?}, too");
            errors.add(format!("{path}.metadata.name"), message, "rename one of them");
        }
        if let Some(kind) = config.kind.as_deref().filter(|kind| *kind != "DataPartitionConfig") {
            errors.add(
                format!("{path}.kind"),
                format!("a {kind:?} does not belong here"),
                "write DataPartitionConfig",
            );
        }
        // These errors are reported last, but a ring's table depends on the range.
        let mut of_range = FieldErrors::default();
        let range = range_of(config, path, input.scheme, &mut of_range);
        let placed = placement::of(config, path, input, range.as_ref(), errors);
        let durability =
            config.durability.as_deref().map(str::parse).transpose().unwrap_or_else(|message: String| {
                errors.add(format!("{path}.durability"), message, "write none, buffered or fsync");
                None
            });
        let limits = config.limits.unwrap_or_default();
        for (field, limit) in [
            ("readsPerSecond", limits.reads_per_second),
            ("writesPerSecond", limits.writes_per_second),
            ("clientReadsPerSecond", limits.client_reads_per_second),
            ("clientWritesPerSecond", limits.client_writes_per_second),
        ] {
            if limit == Some(0) {
                let what_to_do = "write 1 or more, or leave it out for no limit";
                errors.add(format!("{path}.limits.{field}"), "0 would refuse everything", what_to_do);
            }
        }
        errors.extend(of_range);
        let Some((kind, start, end)) = range else { continue };
        let path = path.clone();
        // Errors of the stores are already reported. The range still counts for overlaps and gaps.
        let placement = placed.unwrap_or(Placement::Single(StoreIdx(0)));
        kinds.entry(kind).or_default().push(Range { path, config, start, end, placement, durability });
    }
    for ranges in kinds.values_mut() {
        ranges.sort_by(|a, b| a.start.cmp(&b.start));
    }
    kinds
}

/// A partition's Kind, its first key and its exclusive end, which is `None` at the end of the Kind.
type KindRange = (KindPrefix, Key, Option<Key>);

/// The range of a partition. `None` if it is invalid, which is then reported.
fn range_of(
    config: &DataPartitionConfig,
    path: &str,
    scheme: &KindScheme,
    errors: &mut FieldErrors,
) -> Option<KindRange> {
    match scheme.resolve(&config.resource) {
        Ok(kind) => {
            let (start, end) = bounds(&kind, config, path, errors)?;
            Some((kind, start, end))
        }
        Err(error) => {
            let what_to_do = "name a Kind as kubectl api-resources does, or write the prefix of its keys";
            errors.add(format!("{path}.resource"), error.to_string(), what_to_do);
            None
        }
    }
}

/// The first key and the exclusive end of a partition. `None` if they do not form a range, which is then reported.
fn bounds(
    kind: &KindPrefix,
    config: &DataPartitionConfig,
    path: &str,
    errors: &mut FieldErrors,
) -> Option<(Key, Option<Key>)> {
    let before = errors.len();
    let fields = [
        ("rangeStart", &config.range_start, "isRangeStartValid", config.is_range_start_valid),
        ("rangeEnd", &config.range_end, "isRangeEndValid", config.is_range_end_valid),
    ];
    for (field, value, flag, valid) in fields {
        if !valid && !value.is_empty() {
            let message = format!("{field} is given, but {flag} is false");
            errors.add(format!("{path}.{field}"), message, format!("set {flag}, or remove {field}"));
        } else if value.starts_with('/') {
            let message = format!("{value:?} looks like a whole key");
            errors.add(
                format!("{path}.{field}"),
                message,
                format!("leave {kind} out: write namespace/name or name"),
            );
        }
    }
    let at = |name: &str| {
        let mut key = kind.as_key().to_vec();
        key.extend_from_slice(name.as_bytes());
        Key(key.into())
    };
    let start = if config.is_range_start_valid { at(&config.range_start) } else { kind.as_key().clone() };
    let end = config.is_range_end_valid.then(|| at(&config.range_end));
    if end.as_ref().is_some_and(|end| *end <= start) {
        let message = format!("the range from {:?} to {:?} is empty", config.range_start, config.range_end);
        errors.add(format!("{path}.rangeEnd"), message, "let rangeEnd be above rangeStart");
    }
    (errors.len() == before).then_some((start, end))
}

/// Checks that a Kind's ranges cover it without overlap and agree on the Kind's settings.
fn whole_kind(
    kind: &KindPrefix,
    ranges: &[Range<'_>],
    scheme: &KindScheme,
    errors: &mut FieldErrors,
) -> KindSettings {
    let name = scheme.name_of(kind);
    let text = |key: &Key| String::from_utf8_lossy(&key[kind.as_key().len()..]).into_owned();
    // All keys below this are covered; `None` means the whole Kind is.
    let mut covered = Some(kind.as_key().clone());
    let mut last = None;
    for range in ranges {
        match &covered {
            Some(covered) if *covered == range.start => {}
            Some(covered) if *covered < range.start => {
                let message =
                    format!("no partition holds {name} from {:?} to {:?}", text(covered), text(&range.start));
                errors.add(format!("{}.rangeStart", range.path), message, "close the gap");
            }
            _ => {
                let other = last.map_or("another partition", |last: &Range<'_>| &last.config.metadata.name);
                let message = format!("overlaps {other:?} at {name} {:?}", text(&range.start));
                errors.add(
                    format!("{}.rangeStart", range.path),
                    message,
                    "let one end where the other begins",
                );
            }
        }
        let further = match (&covered, &range.end) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(covered), Some(end)) => end > covered,
        };
        if further {
            covered.clone_from(&range.end);
            last = Some(range);
        }
    }
    if let (Some(covered), Some(last)) = (covered, last) {
        let message = format!("no partition holds {name} from {:?} on", text(&covered));
        errors.add(
            format!("{}.rangeEnd", last.path),
            message,
            "leave the last range open (isRangeEndValid: false)",
        );
    }
    let durability = ranges.first().and_then(|first| first.durability);
    for range in ranges.iter().skip(1) {
        if range.durability != durability {
            let message = format!("another partition of {name} has another durability");
            errors.add(
                format!("{}.durability", range.path),
                message,
                "give all partitions of the Kind the same",
            );
        }
    }
    let limits = ranges.first().and_then(|first| first.config.limits).unwrap_or_default();
    for range in ranges.iter().skip(1) {
        if range.config.limits.unwrap_or_default() != limits {
            errors.add(
                format!("{}.limits", range.path),
                format!("another partition of {name} has other limits"),
                "give all partitions of the Kind the same",
            );
        }
    }
    let history = HistoryBounds::of(ranges.iter().filter_map(|range| range.config.history()));
    KindSettings { kind: kind.clone(), durability, limits, history }
}

/// The partitions of a Kind that is completely covered: its pseudo-key, on a store of the first range, and its
/// ranges.
fn partitions_of(kind: &KindPrefix, ranges: &[Range<'_>]) -> Vec<Partition> {
    let stem = Key::copy_from(kind.stem());
    let partition = |start: Key, end: Key, placement: Placement| Partition {
        range: KeyRange::Span { start, end: Some(end) },
        kind: Some(kind.clone()),
        placement,
        epoch: Epoch(1),
    };
    let keeper = ranges.first().and_then(|first| first.placement.stores().first().copied());
    let pseudo = keeper.map(|store| partition(stem.clone(), stem.successor(), Placement::Single(store)));
    let objects = ranges.iter().map(|range| {
        let end = range.end.clone().unwrap_or_else(|| kind.end());
        partition(range.start.clone(), end, range.placement.clone())
    });
    pseudo.into_iter().chain(objects).collect()
}

#[cfg(test)]
mod tests;
