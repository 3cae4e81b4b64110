use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

proptest! {
    /// Streams that come in order and end in any order are found as in a map.
    #[test]
    fn streams_are_found_as_in_a_map(steps in prop::collection::vec((any::<bool>(), 1_u32..40, any::<prop::sample::Index>()), 1..300)) {
        let (mut streams, mut model, mut next) = (Streams::new(), BTreeMap::new(), 1);
        for (add, gap, which) in steps {
            if add || model.is_empty() {
                next += gap * 2;
                model.insert(next, streams.insert(Begin { id: next, ..Begin::default() }));
            } else {
                let keys: Vec<u32> = model.keys().copied().collect();
                let id = *which.get(&keys);
                let stream = model.remove(&id).expect("it is a key");
                streams.remove(stream);
                prop_assert!(streams.get(stream).is_none());
                streams.remove(stream);
            }
            prop_assert_eq!(streams.len(), model.len());
            for id in (1..=next + 2).step_by(2) {
                prop_assert_eq!(streams.find(id), model.get(&id).copied());
            }
            for (id, stream) in &model {
                prop_assert_eq!(streams.get(*stream).map(|found| found.id), Some(*id));
            }
            prop_assert_eq!(streams.iter_mut().count(), model.len());
        }
    }
}
