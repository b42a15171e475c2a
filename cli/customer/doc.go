// Package customer has the commands that a customer types: `atoll cluster` and `atoll nodepool`, and `atoll policy`,
// `atoll group`, `atoll admin` and `atoll whoami` about who may do what in an account. They call the Platform API by
// package client, and nothing else of a region.
//
// Only package cli imports it.
package customer
