// Package cloudevents holds the gRPC contract over which sources and agents
// exchange CloudEvents with Maestro: the generated messages and the service
// io.cloudevents.v1.CloudEventService.
//
// The attribute keys differ from the official CloudEvents protobuf format:
// the content type is keyed "contenttype", every other attribute and
// extension is keyed "ce-<name>" (ce-time, ce-resourceid, ...), and data
// always travels in binary_data. Package bus owns the event type and the
// translation.
//
// It contains no logic and imports nothing of ours.
package cloudevents

//go:generate protoc --proto_path=. --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative cloudevents.proto
