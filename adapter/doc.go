// Package adapter runs task configs: what to do for one resource of CLM when an
// event says that it needs work, and what to report of it.
//
// A behaviour is two YAML files, AdapterConfig and AdapterTaskConfig, as
// hyperfleet-adapter reads them. The engine goes through a task's phases
// (params, preconditions, resources, post) for one event at a time and
// resource; objects are applied and found through a Transport. Packages works
// (ManifestWorks through Maestro) and objects (a Kubernetes API) below are
// transports.
//
// It is a service: package cli composes it, and no other service imports it.
package adapter
