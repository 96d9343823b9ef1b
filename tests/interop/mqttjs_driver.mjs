// Carries out what test_mqttjs.py asks for, with MQTT.js: one JSON object in each line, in both directions.
//
// in:   {"id": 1, "op": "connect", "client": "name", ...}
// out:  {"id": 1, "result": ...} or {"id": 1, "error": "...", "code": ...}, and {"event": ..., "client": "name", ...}

import { createInterface } from 'node:readline'
import mqtt from 'mqtt'

const clients = new Map()

const say = (object) => process.stdout.write(JSON.stringify(object) + '\n')

function watch (name, client) {
  client.on('message', (topic, payload, packet) => say({
    event: 'message',
    client: name,
    topic,
    payload: payload.toString('latin1'),
    qos: packet.qos,
    retain: packet.retain,
    properties: packet.properties ?? {}
  }))
  client.on('disconnect', (packet) => say({ event: 'disconnect', client: name, reason: packet.reasonCode }))
  client.on('close', () => say({ event: 'close', client: name }))
  client.on('error', () => {}) // what was asked for is answered with it
}

const operations = {
  connect ({ client: name, url, options }) {
    return new Promise((resolve, reject) => {
      const client = mqtt.connect(url, { reconnectPeriod: 0, ...options })
      clients.set(name, client)
      watch(name, client)
      client.once('connect', (packet) => resolve({
        sessionPresent: packet.sessionPresent,
        properties: packet.properties ?? {}
      }))
      client.once('error', reject)
    })
  },
  subscribe ({ client, topic, options }) {
    return clients.get(client).subscribeAsync(topic, options)
      .then((granted) => granted.map((each) => each.qos))
  },
  unsubscribe ({ client, topic }) {
    return clients.get(client).unsubscribeAsync(topic)
      .then((packet) => packet?.granted ?? [])
  },
  publish ({ client, topic, payload, options }) {
    return clients.get(client).publishAsync(topic, Buffer.from(payload, 'latin1'), options)
      .then(() => null)
  },
  end ({ client, options }) {
    return clients.get(client).endAsync(false, options ?? {}).then(() => null)
  },
  async kill ({ client }) {
    clients.get(client).stream.destroy()
    return null
  }
}

createInterface({ input: process.stdin }).on('line', (line) => {
  const request = JSON.parse(line)
  operations[request.op](request).then(
    (result) => say({ id: request.id, result }),
    (error) => say({ id: request.id, error: String(error), code: error.code })
  )
}).on('close', () => process.exit(0))

say({ event: 'ready' })
