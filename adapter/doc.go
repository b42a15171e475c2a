// Package adapter runs adapters: for each event about a resource of CLM it runs the adapter's task,
// which applies objects and reports the resource's status.
//
// An adapter is two YAML files, AdapterConfig and AdapterTaskConfig, in hyperfleet-adapter's
// language with the additions of docs/adapters.md. Engine runs the phases of a task (params,
// preconditions, resources, post) for one event. Worker receives events and runs the engine, one
// run at a time for each resource. A Transport applies and finds objects: package works by
// ManifestWorks through Maestro, package objects by a Kubernetes API. To read the engine, start at
// Engine.Run.
//
// It is a service: package cli composes it, and no other service imports it.
package adapter
