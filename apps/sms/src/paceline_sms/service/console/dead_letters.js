// Messages that will not be sent unless somebody redrives them.

import {query as asQuery, call} from './api.js'
import {agreed} from './dialog.js'
import {button, card, h, table, update} from './dom.js'
import {pager, sortHeading, totalOf} from './list.js'
import {count, moment} from './words.js'

const BASE = '/admin/sms/dead-letters'
const PAGE = 50
const WORDS = {
  redrive: ['Send again', 'Each is sent as if it were new, under its old id.', 'main'],
  drop: ['Drop', 'The message is never sent. This can’t be undone.', 'danger'],
}

/** A card, and how it is refreshed. */
export function deadLetters(shell, query) {
  const parts = ['notifications']
  const [actions, letters] = [h('div', {class: 'row'}), h('div')]

  const press = async (verb, body, what) => {
    const [title, effect, kind] = WORDS[verb]
    if (!(await agreed(`${title} ${what}?`, effect, title, {kind}))) return
    await shell.attempt(
      () => call('POST', `${BASE}/${verb}`, body),
      ({redriven = 0, kept = 0, dropped = 0}) =>
        verb === 'drop'
          ? `${count(dropped)} dropped.`
          : `${count(redriven)} sent again${kept ? `; ${count(kept)} were too long to keep whole, and stay` : ''}.`,
    )
    shell.refresh()
  }

  const buttons = (body, what, key) => [
    button('Send again', () => press('redrive', body, what), {
      kind: 'quiet',
      missing: shell.missing('operate'),
      'data-key': `redrive ${key}`,
      'aria-label': `Send ${what} again`,
    }),
    button('Drop', () => press('drop', body, what), {
      kind: 'quiet danger',
      missing: shell.missing('operate'),
      'data-key': `drop ${key}`,
      'aria-label': `Drop ${what}`,
    }),
  ]

  return {
    element: card('Dead letters', actions, letters),
    async refresh(read) {
      const given = {sort: query.sort, cursor: query.cursor, limit: PAGE, total: 'true'}
      const {deadLetters: page, next, total} = await read(asQuery(BASE, given))
      const since = sortHeading('Since', 'deadAt', parts, query, {first: 'deadAt'})
      update(actions, total > 1 && buttons({all: true}, 'all dead letters', 'all'))
      update(
        letters,
        totalOf(total, 'message waits here.', 'messages wait here.'),
        table(
          'Dead letters',
          ['Message', 'User', since, ['Attempts', 'number'], ['Reason', 'text'], ''],
          page.map(letter => [
            h('code', {}, letter.messageId ?? letter.id.slice(0, 12)),
            letter.userId,
            moment(letter.deadAt),
            count(letter.attempts),
            letter.reason,
            h(
              'div',
              {class: 'row'},
              buttons({ids: [letter.id]}, `message ${letter.messageId ?? letter.id.slice(0, 12)}`, letter.id),
            ),
          ]),
          'No message was refused, and none has expired.',
        ),
        pager(parts, query, next),
      )
    },
  }
}
