// The SMS gateway: attempts of the last hour, who behaves unusually, and what could not be sent.

import {query} from './api.js'
import {stacked} from './charts.js'
import {deadLetters} from './dead_letters.js'
import {badge, card, field, h, select, show, table, update} from './dom.js'
import {clock, count, rate} from './words.js'

const BASE = '/admin/notifications/analytics'

export const notifications = {
  title: 'Notifications',
  needs: 'view',
  open(root, shell, _parts, address) {
    const chosen = address.minutes ?? '60'
    const minutes = select(
      [
        ['15', '15 minutes'],
        ['60', 'hour'],
        ['360', '6 hours'],
        ['1440', 'day'],
      ],
      {value: chosen},
    )
    minutes.addEventListener('change', () => shell.go('notifications', {...address, minutes: minutes.value}))
    const letters = deadLetters(shell, address)
    const [totals, series, unusual, users] = [h('div', {class: 'tiles'}), h('div'), h('div'), h('div')]
    show(
      root,
      h('h1', {}, 'Notifications'),
      card('Attempts to send', h('div', {class: 'row'}, field('The last', minutes)), totals, series),
      letters.element,
      card('Unusual users', unusual),
      card('Users with most attempts', users),
    )
    return {
      every: 5000,
      async refresh(read) {
        const [all, top] = await Promise.all([
          read(query(BASE, {minutes: chosen})),
          read(query(`${BASE}/users`, {minutes: chosen, limit: 20})),
          letters.refresh(read),
        ])
        update(
          totals,
          [
            ['Attempts', all.attempts],
            ['Sent', all.sent],
            ['Limited', all.rateLimited],
            ['Failed', all.failed],
            ['Users', all.users],
          ].map(([name, value]) =>
            h('div', {class: 'tile'}, h('span', {}, name), h('b', {class: 'big'}, count(value))),
          ),
        )
        const columns = all.attempts ? filled(all) : null
        update(
          series,
          columns &&
            stacked(
              [
                ['sent', 'taken', columns.map(each => each.sent)],
                ['limited', 'added', columns.map(each => each.rateLimited)],
                ['failed', 'full', columns.map(each => each.failed)],
              ],
              columns.map(each => clock(each.start)),
              'Attempts over time',
            ),
          h(
            'p',
            {class: 'soft'},
            all.attempts
              ? `${(all.rateLimitedShare * 100).toFixed(1)} % were limited; ${rate(all.perMinute)} per minute on average${all.peak ? `, ${count(all.peak.attempts)} in the busiest, at ${clock(all.peak.minute)}` : ''}.`
              : 'Nobody has tried to send.',
          ),
        )
        update(
          unusual,
          table(
            'Unusual users',
            ['User', ['Per minute, lately', 'number'], ['Before', 'number'], ['Deviations', 'number'], ''],
            all.anomalies.map(each => [
              each.userId,
              rate(each.recentPerMinute),
              rate(each.baselinePerMinute),
              each.deviations,
              each.newlyLimited && badge('newly limited', 'warn'),
            ]),
            'Nobody does anything unusual.',
          ),
        )
        update(
          users,
          table(
            'Users',
            [
              'User',
              ['Attempts', 'number'],
              ['Sent', 'number'],
              ['Limited', 'number'],
              ['Failed', 'number'],
              ['Per minute', 'number'],
            ],
            top.users.map(each => [
              each.userId,
              count(each.attempts),
              count(each.sent),
              count(each.rateLimited),
              count(each.failed),
              rate(each.perMinute),
            ]),
            'Nobody has tried to send.',
          ),
        )
      },
    }
  },
}

/** The whole span in at most sixty columns; minutes without an attempt are not told. */
function filled(all) {
  const from = Date.parse(all.from)
  const minutes = Math.max(1, Math.ceil((Date.parse(all.to) - from) / 60_000))
  const each = Math.ceil(minutes / 60)
  const columns = Array.from({length: Math.ceil(minutes / each)}, (_, n) => ({
    start: from + n * each * 60_000,
    sent: 0,
    rateLimited: 0,
    failed: 0,
  }))
  for (const minute of all.minutes) {
    const column = columns[Math.floor((Date.parse(minute.minute) - from) / 60_000 / each)]
    for (const kind of ['sent', 'rateLimited', 'failed']) if (column) column[kind] += minute[kind]
  }
  return columns
}
