// Where the console shows things of each kind. Pages of applications add theirs.

/** By kind of what the search finds: its name, and the parts of the address where it is shown. */
export const FOUND = {
  event: {name: 'event', place: ({id}) => ['slots', '', id]},
  item: {name: 'queue item', place: ({itemType, id}) => ['dispatch', itemType, 'item', id]},
  key: {name: 'limit key', place: ({id, plans}) => ['limits', '', {key: id, plans: plans.join(', ')}]},
}
/** By item type: the words of a link to what its items are, and where that is shown. */
export const ITEMS = {}

/** Adds what a page shows: `found` by kind, and `items` by item type. */
export function addPlaces({found = {}, items = {}}) {
  Object.assign(FOUND, found)
  Object.assign(ITEMS, items)
}
