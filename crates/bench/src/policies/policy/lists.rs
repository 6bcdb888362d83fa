//! Doubly linked lists of objects, each in at most one of them: newest in front.

/// No object.
const NONE: u32 = u32::MAX;

/// `N` lists, and the bytes in each.
#[derive(Debug)]
pub struct Lists<'c, const N: usize> {
    charges: &'c [u32],
    links: Vec<Link>,
    ends: [Ends; N],
}

#[derive(Clone, Copy, Debug)]
struct Link {
    newer: u32,
    older: u32,
    list: u8,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    front: u32,
    back: u32,
    bytes: u64,
}

/// An object in no list.
const UNLINKED: u8 = u8::MAX;

impl<'c, const N: usize> Lists<'c, N> {
    /// Returns empty lists of objects with these charges.
    pub fn new(charges: &'c [u32]) -> Lists<'c, N> {
        let link = Link { newer: NONE, older: NONE, list: UNLINKED };
        let ends = Ends { front: NONE, back: NONE, bytes: 0 };
        Lists { charges, links: vec![link; charges.len()], ends: [ends; N] }
    }

    /// Returns the bytes of an object.
    pub fn charge(&self, object: u32) -> u64 {
        self.charges[object as usize].into()
    }

    /// Returns the bytes of all objects in a list.
    pub fn bytes(&self, list: usize) -> u64 {
        self.ends[list].bytes
    }

    /// Returns the list that an object is in.
    pub fn list_of(&self, object: u32) -> Option<usize> {
        let list = self.links[object as usize].list;
        (list != UNLINKED).then_some(list.into())
    }

    /// Returns the oldest object of a list.
    pub fn back(&self, list: usize) -> Option<u32> {
        some(self.ends[list].back)
    }

    /// Returns the next newer object of the same list.
    pub fn newer(&self, object: u32) -> Option<u32> {
        some(self.links[object as usize].newer)
    }

    /// Adds an object that is in no list.
    pub fn push_front(&mut self, list: usize, object: u32) {
        let front = std::mem::replace(&mut self.ends[list].front, object);
        debug_assert_eq!(self.list_of(object), None);
        self.links[object as usize] = Link { newer: NONE, older: front, list: list as u8 };
        match some(front) {
            Some(front) => self.links[front as usize].newer = object,
            None => self.ends[list].back = object,
        }
        self.ends[list].bytes += self.charge(object);
    }

    /// Removes an object from its list, which is returned.
    pub fn remove(&mut self, object: u32) -> Option<usize> {
        let list = self.list_of(object)?;
        let link = self.links[object as usize];
        match some(link.newer) {
            Some(newer) => self.links[newer as usize].older = link.older,
            None => self.ends[list].front = link.older,
        }
        match some(link.older) {
            Some(older) => self.links[older as usize].newer = link.newer,
            None => self.ends[list].back = link.newer,
        }
        self.links[object as usize].list = UNLINKED;
        self.ends[list].bytes -= self.charge(object);
        Some(list)
    }

    /// Makes an object the newest of a list.
    pub fn move_front(&mut self, list: usize, object: u32) {
        self.remove(object);
        self.push_front(list, object);
    }

    /// Removes the oldest object of a list.
    pub fn pop_back(&mut self, list: usize) -> Option<u32> {
        let object = self.back(list)?;
        self.remove(object);
        Some(object)
    }
}

fn some(object: u32) -> Option<u32> {
    (object != NONE).then_some(object)
}
