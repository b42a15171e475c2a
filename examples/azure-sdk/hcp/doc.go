// Package hcp has the types of hosted clusters, node pools and external authentications that the program of this module
// sends and reads. They are generated from the repository's api/arm/openapi.yaml.
package hcp
