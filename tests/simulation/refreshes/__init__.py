"""Simulation of refreshes of materialized views, with other clients that change the views and the tables below them."""
