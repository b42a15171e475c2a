// Package customer has the commands that a customer types: `atoll cluster` and `atoll nodepool`. They call the Platform
// API by package client, and nothing else of a region.
//
// Only package cli imports it.
package customer
