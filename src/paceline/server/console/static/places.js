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

/** By the name of a number: what it counts, as people say it. A number without words belongs to an application that is
 *  not installed, and is not shown. */
export const NUMBERS = {
  slotsBooked: 'Slots booked',
  slotsRefused: 'Slots refused',
  limitDecisions: 'Limit decisions',
  limitDenials: 'Limit denials',
  executions: 'Executions',
  failures: 'Failed executions',
  deadLetters: 'Dead letters',
  downstreamCalls: 'Calls of downstreams',
}

/** Adds what a page shows: `found` by kind, `items` by item type, and the words of `numbers` by their names. */
export function addPlaces({found = {}, items = {}, numbers = {}}) {
  Object.assign(FOUND, found)
  Object.assign(ITEMS, items)
  Object.assign(NUMBERS, numbers)
}
