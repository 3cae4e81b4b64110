//! A walk in key order: the path to the current leaf as a stack of what is still to visit at each level.

use std::borrow::Borrow;

use super::node::{Child, Leaf, Node};

/// Entries of an [`OrderIndex`](super::OrderIndex) in key order.
pub struct Iter<'a, K, T> {
    /// Children not yet visited, one slice a level, the deepest last.
    rest: Vec<&'a [Child<K, T>]>,
    leaf: &'a Leaf<K, T>,
    /// Positions in `leaf` still to be returned.
    pending: u64,
    live_only: bool,
}

impl<'a, K: Borrow<[u8]>, T> Iter<'a, K, T> {
    pub(super) fn from(root: &'a Node<K, T>, start: &[u8], live_only: bool) -> Self {
        let mut rest = Vec::new();
        let mut node = root;
        let leaf = loop {
            node.visited();
            match node {
                Node::Leaf(leaf) => break leaf,
                Node::Inner(inner) => {
                    let at = inner.child_of(start);
                    rest.push(&inner.children[at + 1..]);
                    node = &inner.children[at].node;
                }
            }
        };
        let mut iter = Self { rest, leaf, pending: 0, live_only };
        iter.enter(leaf, leaf.lower_bound(start));
        iter
    }

    fn enter(&mut self, leaf: &'a Leaf<K, T>, from: usize) {
        self.leaf = leaf;
        let wanted = if self.live_only { leaf.live } else { leaf.all() };
        self.pending = wanted & !super::node::low_bits(from);
    }

    /// Moves to the next leaf that has something to return; false at the end.
    fn next_leaf(&mut self) -> bool {
        while let Some(rest) = self.rest.pop() {
            let skip = if self.live_only { rest.iter().position(|c| c.live > 0) } else { Some(0) };
            let Some((child, after)) = skip.and_then(|skip| rest[skip..].split_first()) else {
                continue;
            };
            self.rest.push(after);
            child.node.visited();
            match &child.node {
                Node::Inner(inner) => self.rest.push(&inner.children),
                Node::Leaf(leaf) => {
                    self.enter(leaf, 0);
                    return true;
                }
            }
        }
        false
    }
}

impl<'a, K: Borrow<[u8]>, T> Iterator for Iter<'a, K, T> {
    type Item = (&'a K, &'a T);

    fn next(&mut self) -> Option<Self::Item> {
        while self.pending == 0 {
            if !self.next_leaf() {
                return None;
            }
        }
        let at = self.pending.trailing_zeros() as usize;
        self.pending &= self.pending - 1;
        let entry = &self.leaf.entries[at];
        Some((&entry.key, &entry.value))
    }
}

impl<K: Borrow<[u8]>, T> std::iter::FusedIterator for Iter<'_, K, T> {}
