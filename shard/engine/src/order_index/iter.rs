//! Iterates in key order. The path to the current leaf is a stack of the children still to visit at each level.

use super::{
    Keys,
    node::{Child, Leaf, Node},
};

/// Entries of an [`OrderIndex`](super::OrderIndex) in key order.
pub struct Iter<'a, T> {
    /// Children still to visit, one slice per level, the deepest last.
    rest: Vec<&'a [Child<T>]>,
    leaf: &'a Leaf<T>,
    /// Positions in `leaf` still to be returned, one bit each.
    pending: u64,
    live_only: bool,
}

impl<'a, T> Iter<'a, T> {
    pub(super) fn from(root: &'a Node<T>, start: &[u8], live_only: bool, keys: &impl Keys<T>) -> Self {
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
        iter.enter(leaf, leaf.lower_bound(start, keys));
        iter
    }

    fn enter(&mut self, leaf: &'a Leaf<T>, from: usize) {
        self.leaf = leaf;
        let wanted = if self.live_only { leaf.live } else { leaf.all() };
        self.pending = wanted & !super::node::low_bits(from);
    }

    /// Moves to the next leaf with entries to return; false at the end.
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

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<Self::Item> {
        while self.pending == 0 {
            if !self.next_leaf() {
                return None;
            }
        }
        let at = self.pending.trailing_zeros() as usize;
        self.pending &= self.pending - 1;
        self.leaf.entries.get(at)
    }
}

impl<T> std::iter::FusedIterator for Iter<'_, T> {}
