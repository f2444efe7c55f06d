// "Try it first": the limit line of a picture is dragged, or moved by arrow keys. What that would do is shown; then it is
// made, with its re-plan; and it can be undone.

import {agreed} from './dialog.js'
import {button, h, show, update} from './dom.js'
import {count, moment} from './words.js'

const PAUSE_MS = 400 // without a key or a move, until what is tried is previewed

/** @typedef {{words: any[], change: () => Promise<Preview | undefined>, verb: string}} Preview
 *  What a change would do, and the change: it resolves to the preview of its undoing. */

/** A limit per second, as people read it. */
export const perSecond = limit => (limit >= 10 ? count(Math.round(limit)) : String(Number(limit.toPrecision(2))))

/** What is tried with the limit of one picture. */
export class LimitTrial {
  /** The limit that is tried; null while none is. */
  value = null
  element = h('div', {class: 'trial', role: 'status'})
  #asked = 0
  #waiting

  /** @param {{attempt: (work: () => Promise<any>, done?: any) => Promise<any>, refresh: () => any}} shell
   *  @param {{step: number, preview: (limit: number) => Promise<Preview>}} limits how a limit is tried, and its smallest step
   *  @param {() => void} redraw draws the picture anew */
  constructor(shell, limits, redraw) {
    this.shell = shell
    this.limits = limits
    this.redraw = redraw
  }

  /** The handle on the line of a picture: where the line may be, as shares of the height, and the limit at the top. */
  handle(flow, {top, bottom, most}) {
    const value = this.value ?? flow.limit
    const set = limit => this.#set(flow, Math.max(this.limits.step, this.#rounded(limit)))
    const keys = {ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1, PageUp: 10, PageDown: -10}
    const made = h('div', {
      class: 'flow-handle',
      role: 'slider',
      tabindex: 0,
      'aria-orientation': 'vertical',
      'aria-label': `Try another pace for ${flow.name}`,
      'aria-valuemin': this.limits.step,
      'aria-valuemax': Math.ceil(Math.max(most, value)),
      'aria-valuenow': value,
      'aria-valuetext': `${perSecond(value)} per second`,
      'data-key': `limit ${flow.name}`,
      onkeydown: event => {
        if (event.key === 'Escape') return this.leave()
        if (!(event.key in keys)) return
        event.preventDefault()
        set(value + Math.max(this.limits.step, value / 100) * keys[event.key])
      },
      onpointerdown: event => {
        event.preventDefault()
        event.currentTarget.focus()
        const box = event.currentTarget.parentElement.getBoundingClientRect()
        const move = ({clientY}) => set(((bottom - (clientY - box.top) / box.height) / (bottom - top)) * most)
        // Of the window: the handle is drawn anew while it moves.
        addEventListener('pointermove', move)
        for (const end of ['pointerup', 'pointercancel'])
          addEventListener(end, () => removeEventListener('pointermove', move), {once: true})
      },
    })
    made.style.top = `${100 * (bottom - (Math.min(value, most) / most) * (bottom - top))}%`
    return made
  }

  #rounded(limit) {
    return Math.round(limit / this.limits.step) * this.limits.step
  }

  #set(flow, limit) {
    if (limit === (this.value ?? flow.limit)) return
    this.value = limit
    this.redraw()
    clearTimeout(this.#waiting)
    this.#waiting = setTimeout(() => this.preview(() => this.limits.preview(limit)), PAUSE_MS)
  }

  /** Shows what a change would do, with the button that makes it. */
  async preview(look) {
    const asked = ++this.#asked
    const seen = await this.shell.attempt(look)
    if (!seen || asked !== this.#asked) return
    update(
      this.element,
      h('p', {}, h('b', {}, 'Try it first: '), seen.words),
      h(
        'div',
        {class: 'row'},
        button(seen.verb, () => this.#make(seen), {kind: 'main', 'data-key': 'make'}),
        button('Leave it', () => this.leave(), {'data-key': 'leave'}),
      ),
    )
  }

  async #make(seen) {
    if (
      !(await agreed(`${seen.verb}?`, 'It holds on every node within a moment; it can be undone.', seen.verb, {
        kind: 'main',
      }))
    )
      return
    const undoing = await this.shell.attempt(seen.change)
    if (!undoing) return
    this.leave()
    show(
      this.element,
      h('p', {}, undoing.words, ' '),
      button(
        undoing.verb,
        async () => {
          const again = await this.shell.attempt(undoing.change, 'It is as it was.')
          if (again) this.leave()
          this.shell.refresh()
        },
        {'data-key': 'undo'},
      ),
    )
    this.shell.refresh()
  }

  /** Forgets what is tried. */
  leave() {
    clearTimeout(this.#waiting)
    this.#asked += 1
    this.value = null
    show(this.element)
    this.redraw()
  }
}

/** "a, at 08:31:10 instead of 08:40:00". */
export const insteadOf = (what, then, now) =>
  then === now ? [what, moment(then)] : [what, moment(then), ' instead of ', moment(now)]
