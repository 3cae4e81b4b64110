//! Futures of one task, each woken by itself, in places that are used again. A place keeps its waker, so that a call
//! costs no allocation beside that of its future.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

/// Values with a waker each, which tells the task that owns them.
#[derive(Debug)]
pub(super) struct Slots<T> {
    places: Vec<Place<T>>,
    free: Vec<usize>,
    ready: Arc<Ready>,
}

#[derive(Debug)]
struct Place<T> {
    value: Option<T>,
    bell: Arc<Bell>,
    waker: Waker,
}

/// The places whose wakers were called.
#[derive(Debug, Default)]
struct Ready {
    places: Mutex<Vec<usize>>,
    task: AtomicWaker,
}

#[derive(Debug)]
struct Bell {
    place: usize,
    rung: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.rung.swap(true, Ordering::AcqRel) {
            return;
        }
        let first = {
            let mut places = self.ready.places.lock();
            places.push(self.place);
            places.len() == 1
        };
        // Later ones are found by the task that the first one wakes.
        if first {
            self.ready.task.wake();
        }
    }
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new(), ready: Arc::default() }
    }
}

impl<T> Slots<T> {
    /// Gives a value a place. Who had the place before may still wake it.
    pub fn insert(&mut self, value: T) -> usize {
        if let Some(place) = self.free.pop() {
            self.places[place].value = Some(value);
            return place;
        }
        let place = self.places.len();
        let bell = Arc::new(Bell { place, rung: AtomicBool::new(false), ready: self.ready.clone() });
        self.places.push(Place { value: Some(value), waker: Waker::from(bell.clone()), bell });
        place
    }

    /// Takes a value away.
    pub fn remove(&mut self, place: usize) -> Option<T> {
        let value = self.places.get_mut(place)?.value.take()?;
        self.free.push(place);
        Some(value)
    }

    /// A value and its waker.
    pub fn get(&mut self, place: usize) -> Option<(&mut T, &Waker)> {
        let place = self.places.get_mut(place)?;
        Some((place.value.as_mut()?, &place.waker))
    }

    pub fn waker(&self, place: usize) -> Option<&Waker> {
        Some(&self.places.get(place)?.waker)
    }

    /// The places that were woken since the last time, in their order; the task of `cx` hears of later ones.
    pub fn woken(&self, cx: &Context<'_>, into: &mut Vec<usize>) {
        into.clear();
        self.ready.task.register(cx.waker());
        std::mem::swap(&mut *self.ready.places.lock(), into);
        for place in into.iter() {
            self.places[*place].bell.rung.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_is_woken_by_itself_and_the_task_once() {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let cx = Context::from_waker(&waker);
        let (mut slots, mut woken) = (Slots::default(), Vec::new());
        let (a, b, c) = (slots.insert('a'), slots.insert('b'), slots.insert('c'));
        slots.woken(&cx, &mut woken);
        assert!(woken.is_empty());
        for place in [c, a, c] {
            slots.waker(place).unwrap().wake_by_ref();
        }
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        slots.woken(&cx, &mut woken);
        assert_eq!(woken, [c, a]);
        assert_eq!(slots.remove(b), Some('b'));
        assert_eq!(slots.remove(b), None);
        let d = slots.insert('d');
        assert_eq!((d, slots.get(d).unwrap().0), (b, &mut 'd'));
        slots.waker(a).unwrap().wake_by_ref();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        for place in [a, c, d] {
            assert!(slots.remove(place).is_some());
        }
        assert_eq!(slots.free.len(), 3);
        // A waker that outlives its value does no harm.
        slots.woken(&cx, &mut woken);
        assert!(slots.get(a).is_none());
    }
}
