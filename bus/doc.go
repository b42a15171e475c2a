// Package bus carries CloudEvents over MQTT 5: the event and its wire form
// ([Event]), the topics of Open Cluster Management ([Topic]) and of reconcile
// events ([EventTopic]), a client ([Client]) and an embedded broker ([Broker]).
//
// The broker stores nothing: clients connect with a clean session, and Maestro's
// ledger and resync repair every loss of a message. So the client keeps no queue
// over a lost connection; publishing fails with ErrDisconnected, and the client
// calls OnConnected after each connect. Any MQTT 5 broker with shared subscriptions
// can be used; the embedded one keeps nothing on disk.
//
// Maestro, the agent, the sentinel and adapters use the client; only cli, which
// composes `atoll broker`, uses the Broker. The package reads only the common name
// of certificates, and does not interpret events.
package bus
