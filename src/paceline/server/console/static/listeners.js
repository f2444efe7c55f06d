// Which function handles which event of an element. It can be replaced: an element that is kept while the page around
// it is rendered anew acts as the newest render says.

/** @type {WeakMap<EventTarget, Map<string, ((event: any) => unknown) | undefined>>} */
const handlers = new WeakMap()

/** Handles an event of an element with `act`, in place of what handled it before. */
export function listen(element, event, act) {
  const known = handlers.get(element) ?? new Map()
  handlers.set(element, known)
  if (!known.has(event)) element.addEventListener(event, happened => known.get(event)?.(happened))
  known.set(event, act)
}

export const isListening = element => handlers.has(element)

/** Gives an element, and all within it, the handlers of an equal one. */
export function adopt(kept, fresh) {
  const [before, now] = [handlers.get(kept), handlers.get(fresh)]
  for (const event of before?.keys() ?? []) before.set(event, now?.get(event))
  for (const [event, act] of now ?? []) listen(kept, event, act)
  for (const [n, child] of [...(kept.children ?? [])].entries()) adopt(child, fresh.children[n])
}
