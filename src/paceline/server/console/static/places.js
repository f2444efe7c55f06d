// Where the console shows things of each kind. Pages of applications add theirs.

/** By kind of what the search finds: its name, the parts of the address where it is shown, and what may be done with it.
 *  @type {Record<string, {name: string, place: (found: any) => any[],
 *                         actions?: {words: string, needs: string, place: (found: any) => any[]}[]}>} */
export const FOUND = {
  event: {name: 'event', place: ({id}) => ['slots', '', id]},
  config: {
    name: 'config',
    place: ({id}) => ['configs', id],
    actions: [{words: 'Re-plan', needs: 'admin', place: ({id}) => ['replan', id]}],
  },
  queue: {
    name: 'queue',
    place: ({id}) => ['dispatch', id],
    actions: [{words: 'Dead letters of', needs: 'view', place: ({id}) => ['dispatch', id, {status: 'DEAD_LETTER'}]}],
  },
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
