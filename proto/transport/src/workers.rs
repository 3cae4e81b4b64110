//! Threads that serve connections, each with its own runtime.
//!
//! A connection and all work for it stay on one thread. No thread steals tasks of another, and HTTP/2's locks are
//! never contended. Several workers on one runtime would make a call half as expensive again.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::listener::Incoming;
use crate::serve::Drain;

thread_local! {
    /// The index of this worker thread, from 1; 0 on all other threads.
    static INDEX: Cell<usize> = const { Cell::new(0) };
}

/// A set of threads that serve connections. Clones share the same threads.
#[derive(Debug, Clone, Default)]
pub struct Workers {
    /// Empty if the accepting runtime also serves.
    runtimes: Arc<[Handle]>,
}

impl Workers {
    /// Starts `threads` threads, which run until `ended`. With 1 it starts none: the accepting thread then also
    /// serves, which is the cheapest for each call.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(threads: usize, ended: &CancellationToken) -> io::Result<Self> {
        if threads <= 1 {
            return Ok(Self::default());
        }
        let runtimes: io::Result<Vec<Handle>> =
            (1..=threads).map(|index| worker(index, ended.clone())).collect();
        Ok(Self { runtimes: runtimes?.into() })
    }

    /// Serves connections with `serve`, on this runtime or in turn on the workers. A stop waits for all of them.
    pub fn serve<F>(&self, incoming: Incoming, drain: &Drain, serve: impl Fn(Incoming) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.runtimes.is_empty() {
            drain.spawn(serve(incoming));
            return;
        }
        let (hands_out, shares) = incoming.split(self.runtimes.len());
        for (runtime, share) in self.runtimes.iter().zip(shares) {
            drain.spawn_on(serve(share), runtime);
        }
        // Dropping the acceptor closes the socket, so new connections are refused at once and do not wait.
        drain.spawn(drain.stopping().run_until_cancelled_owned(hands_out.run()));
    }

    /// Creates one value for each worker, inside its runtime, and one for all other threads.
    ///
    /// # Errors
    /// The first error of `make`.
    pub fn each<T, E>(&self, mut make: impl FnMut() -> Result<T, E>) -> Result<PerThread<T>, E> {
        let elsewhere = make()?;
        let of_workers = self.runtimes.iter().map(|runtime| {
            let _inside = runtime.enter();
            make()
        });
        let of_workers = of_workers.collect::<Result<_, E>>()?;
        Ok(PerThread { elsewhere, of_workers })
    }
}

fn worker(index: usize, ended: CancellationToken) -> io::Result<Handle> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
        INDEX.set(index);
        runtime.block_on(ended.cancelled());
    })?;
    Ok(handle)
}

/// A value for each worker.
#[derive(Debug)]
pub struct PerThread<T> {
    elsewhere: T,
    of_workers: Vec<T>,
}

impl<T> PerThread<T> {
    /// The value of the current thread.
    #[must_use]
    pub fn get(&self) -> &T {
        let index = INDEX.get();
        index.checked_sub(1).and_then(|worker| self.of_workers.get(worker)).unwrap_or(&self.elsewhere)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::thread::ThreadId;

    use super::*;

    fn here() -> Result<ThreadId, Infallible> {
        Ok(std::thread::current().id())
    }

    #[tokio::test]
    async fn each_worker_has_its_own() {
        let ended = CancellationToken::new();
        let workers = Workers::start(3, &ended).unwrap();
        let mut made = 0;
        let numbers = workers.each(|| {
            made += 1;
            Ok::<_, Infallible>(made)
        });
        let numbers = Arc::new(numbers.unwrap());
        assert_eq!(*numbers.get(), 1);
        for (runtime, own) in workers.runtimes.iter().zip(2..) {
            let numbers = numbers.clone();
            assert_eq!(runtime.spawn(async move { *numbers.get() }).await.unwrap(), own);
        }
        ended.cancel();
    }

    #[tokio::test]
    async fn what_is_made_for_a_worker_runs_there() {
        let ended = CancellationToken::new();
        let workers = Workers::start(2, &ended).unwrap();
        let tasks = workers.each(|| Ok::<_, Infallible>(tokio::spawn(async { here() }))).unwrap();
        let mut ran_on = Vec::new();
        for task in tasks.of_workers {
            ran_on.push(task.await.unwrap().unwrap());
        }
        for (runtime, ran_on) in workers.runtimes.iter().zip(ran_on) {
            assert_eq!(runtime.spawn(async { here() }).await.unwrap(), Ok(ran_on));
            assert_ne!(here(), Ok(ran_on));
        }
        ended.cancel();
    }

    #[test]
    fn one_worker_is_the_runtime_that_accepts() {
        let workers = Workers::start(1, &CancellationToken::new()).unwrap();
        assert!(workers.runtimes.is_empty());
    }
}
