// Package bus carries CloudEvents over MQTT 5: the event and its wire form
// ([Event]), the topics of Open Cluster Management ([Topic]) and of reconcile
// events ([EventTopic]), a client ([Client]) and an embedded broker ([Broker]).
//
// The broker is a wire, never a store: clients connect with a clean session,
// and whatever a broker loses is made good by Maestro's ledger and by resync.
// So the client keeps no queue over a lost connection; it says that it is
// disconnected and calls OnConnected when it is back. Any MQTT 5 broker with
// shared subscriptions serves; the embedded one keeps nothing on disk.
//
// Maestro, the agent, the sentinel and adapters use the client; only cli, which composes `atoll
// broker`, uses the Broker. It knows nothing of certificates but their common
// name, and nothing of what events mean.
package bus
