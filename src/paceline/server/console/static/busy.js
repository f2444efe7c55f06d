// Controls whose call is under way. They are off until it has ended, also if the page is rendered or opened anew
// meanwhile: so a call is not sent twice.

/** The elements of each control under way.
 *  @type {Map<string, Set<HTMLButtonElement>>} */
const underWay = new Map()

/** What a control has in common with the one that replaces it: the page, and its key or its name. */
const identity = control =>
  [
    location.hash.split('?')[0],
    control.type,
    control.dataset.key ?? control.getAttribute('aria-label') ?? control.textContent,
  ].join('\n')

/** Does `act`, and keeps the control off until it has ended. Does nothing if the control is under way already. */
export async function once(control, act) {
  const name = identity(control)
  if (underWay.has(name)) return
  const controls = new Set([control])
  const focused = document.activeElement === control
  underWay.set(name, controls)
  control.disabled = true
  try {
    await act()
  } finally {
    underWay.delete(name)
    for (const each of controls) each.disabled = false
    // What is off loses the focus: whoever works with the keyboard goes on where they were.
    if (focused && [control, document.body, null].includes(document.activeElement))
      [...controls].find(each => each.isConnected)?.focus({preventScroll: true})
  }
}

/** Turns a new control off if the one that it replaces is under way. */
export function join(control) {
  const controls = underWay.get(identity(control))
  // One that is off for another reason stays off afterwards, and so does the one that it replaces.
  if (control.disabled) return controls?.clear()
  control.disabled = Boolean(controls)
  controls?.add(control)
}

/** Whether a click is the second of a double click: it may meet another control than the first one did. */
export const isRepeated = click => click.detail > 1
